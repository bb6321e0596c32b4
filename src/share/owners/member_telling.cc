#include "share/owners/member_telling.h"

#include "share/debit/ownership.h"
#include "share/said_tag.h"

namespace dthrottle {

bool MemberTelling::AddAnswers(std::uint32_t peer, Instant now, Entries& out) {
  return answers_.Give(peer, [&](const Member& member) { return Add(member, now, out); });
}

// False: there is no room.
bool MemberTelling::Add(const Member& member, Instant now, Entries& out) {
  LimiterCore& core = ways_.core();
  if (core.among == nullptr) return true;
  Table::Shard shard(*core.table, member.divided);
  const auto tag = core.among->TagOf(member.divided);
  const auto index = tag ? LimitOfOwned(core, shard, *tag, now) : std::nullopt;
  const auto word = index ? core.among->WordOf(member.divided, member.name, now) : std::nullopt;
  return !word || AddSaidTag(*core.rules, *tag, *index, 0, {.member = word}, out);
}

}    // namespace dthrottle
