// `peers`: the other hosts.
#include <fmt/format.h>

#include "admin/commands/commands.h"
#include "admin/cut.h"
#include "admin/escape.h"

namespace dthrottle::commands {

namespace {

// "entries 12000, new_tags 3", or null: what was not taken or not believed of a peer.
Json NotTaken(const Context& c, const PeerStatus& p) {
  std::string text;
  const auto add = [&](std::string_view what, std::uint64_t much) {
    if (much != 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what, much);
  };
  for (const Cut& cut : CutOf(c.limiter(), p)) add(cut.ceiling, cut.much);
  add("disbelieved", MergedOf(c.limiter(), p).hits_disbelieved);
  return text.empty() ? Json() : Json(text);
}

}    // namespace

// Everything in it that a peer or a name server wrote is escaped.
Json Peers(const Context& c) {
  Json rows = Json::array();
  for (const PeerStatus& p : c.host.Peers()) {
    const bool heard = p.last_heard >= Duration::zero();
    rows.push_back({{"address", EscapeTag(p.address)},
                    {"name", Escaped(p.name)},
                    {"state", Name(p.state)},
                    {"heard_s_ago", heard ? Json(Rounded(Seconds(p.last_heard))) : Json()},
                    {"age_s", heard ? Json(Rounded(Seconds(p.age))) : Json()},
                    {"reports", p.reports},
                    {"missed", p.missed},
                    {"lost", p.lost},
                    {"lost_hits", p.lost_hits},
                    {"cut", NotTaken(c, p)},
                    {"version", Escaped(p.version)},
                    {"note", Escaped(p.reason)}});
  }
  return rows;
}

}    // namespace dthrottle::commands
