// `leases`: who grants them, and what is leased out.
#include "admin/commands/commands.h"
#include "admin/escape.h"

namespace dthrottle::commands {

namespace {

// Seconds from `now` to `then`, which may be over.
Json SecondsTo(const std::optional<BootInstant>& then, BootInstant now) {
  return then.has_value() ? Json(Rounded(Seconds(*then - now))) : Json();
}

Json LeaseRow(const lease::ResourceStatus& r, BootInstant now) {
  return {{"resource", EscapeTag(r.resource)},
          {"algorithm", Name(r.how->algorithm)},
          {"capacity", Rounded(r.capacity)},
          {"from", r.from},
          {"has", Rounded(r.has)},
          {"wants", Rounded(r.wants)},
          {"clients", r.clients},
          {"shortfall", Rounded(r.shortfall)},
          {"safe", r.safe_capacity < 0 ? Json() : Json(Rounded(r.safe_capacity))},
          {"expires_in_s", SecondsTo(r.capacity_expiry, now)},
          {"learning_s", SecondsTo(r.learning_until, now)}};
}

Json HolderRow(const lease::HolderStatus& h, BootInstant now) {
  return {{"client", EscapeTag(h.id)},
          {"has", Rounded(h.has.capacity)},
          {"wants", Rounded(h.wants)},
          {"priority", h.priority},
          {"expires_in_s", SecondsTo(h.has.expiry, now)}};
}

}    // namespace

// Everything in it that a lease client or another host wrote is escaped.
Json Leases(const Context& c) {
  const Result<std::string> resource = UnescapeTag(c.argument);
  if (!resource) return ErrorAnswer("RESOURCE: " + resource.error().message);
  const LeaseStatus status = c.host.Leases(*resource);
  const std::string note = status.elector.empty()
                               ? "lease.unix, lease.tcp and lease.grpc are \"\": this host leases nothing"
                               : status.trouble;
  Json rows = Json::array(), holders = Json::array();
  for (const auto& r : status.resources) {
    if (resource->empty() || r.resource == *resource) rows.push_back(LeaseRow(r, status.now));
  }
  for (const auto& h : status.holders) holders.push_back(HolderRow(h, status.now));
  Json answer = {{"elector", status.elector.empty() ? Json() : Json(status.elector)},
                 {"master", Escaped(status.master)},
                 {"here", status.here},
                 {"token", status.token},
                 {"valid_s", status.valid.has_value() ? Json(Rounded(Seconds(*status.valid))) : Json()},
                 {"node", EscapeTag(status.node)},
                 {"level", status.level},
                 {"parent", Escaped(status.parent)},
                 {"parent_heard_s", status.parent_heard ? Json(Rounded(Seconds(*status.parent_heard))) : Json()},
                 {"parent_note", Escaped(status.parent_trouble)},
                 {"resources_from", status.resources_from},
                 {"note", Escaped(note)},
                 {"resources", rows}};
  if (!resource->empty()) answer["clients"] = holders;
  return answer;
}

}    // namespace dthrottle::commands
