// The sample of refusals (tally/refusals.h).
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "tally/refusals.h"

using namespace dthrottle;

namespace {

constexpr Instant kNow = FromNanoseconds(5'000'000'000);

std::vector<Refusal> Kept(const Refusals& refusals) {
  std::vector<Refusal> all;
  refusals.AppendTo(all);
  return all;
}

}    // namespace

TEST_CASE("a refusal is kept with all that is asked about it, a long tag by its first bytes") {
  Refusals refusals;
  refusals.Add({"user:alice"}, "users", "query", false, kNow);
  refusals.Add({std::string(200, 'x'), true}, std::string(100, 'r'), "ask", true, kNow + Refusals::kEvery);
  const std::vector<Refusal> kept = Kept(refusals);
  REQUIRE(kept.size() == 2);
  CHECK(kept[0].tag == "user:alice");
  CHECK(kept[0].rule == "users");
  CHECK(kept[0].front_end == "query");
  CHECK((!kept[0].shed && !kept[0].is_cut && !kept[0].is_digest));
  CHECK(kept[0].at == kNow);
  CHECK(kept[1].tag == std::string(Refusals::kTagBytes, 'x'));
  CHECK(kept[1].rule == std::string(Refusals::kRuleBytes, 'r'));
  CHECK((kept[1].shed && kept[1].is_cut && kept[1].is_digest));
}

TEST_CASE("the sample takes one refusal in a while and forgets the oldest") {
  Refusals refusals;
  CHECK(refusals.Due(kNow));
  refusals.Add({"t"}, "r", "query", false, kNow);
  CHECK_FALSE(refusals.Due(kNow + Refusals::kEvery - Duration(1)));
  CHECK(refusals.Due(kNow + Refusals::kEvery));
  for (std::size_t i = 0; i < 2 * Refusals::kKept; ++i) {
    refusals.Add({std::to_string(i)}, "r", "query", false, kNow + Refusals::kEvery * static_cast<int>(i + 1));
  }
  const std::vector<Refusal> kept = Kept(refusals);
  CHECK(kept.size() == Refusals::kKept);
  for (const Refusal& refusal : kept) CHECK(std::stoul(refusal.tag) >= Refusals::kKept);
}
