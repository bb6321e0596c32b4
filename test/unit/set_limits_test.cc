// Limits that operators set while daemons run: their text and signature, which of them counts, and how all hosts of a
// fleet come to know them.
#include "feature/set_limits/set_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <memory>
#include <numeric>
#include <queue>

#include "feature/set_limits/spreading.h"
#include "rule/rulebook.h"

using namespace dthrottle;
using namespace std::chrono_literals;

namespace {

constexpr Duration kToday = 1'700'000'000s;

const OperatorSecret& Alice() {
  static const OperatorSecret secret = MakeOperatorSecret();
  return secret;
}

OperatorKeys Keys() {
  return {{Alice().key, "alice"}};
}

SetLimit TagLimit(std::string name, double burst, Duration stamp = kToday, Duration until = {}) {
  return {.of = LimitOf::kTag, .name = std::move(name), .burst = burst, .rate = 2, .stamp = stamp, .until = until};
}

SetLimit Clear(std::string name, Duration stamp) {
  return {.of = LimitOf::kTag, .name = std::move(name), .clears = true, .stamp = stamp};
}

SignedLimit Signed(const SetLimit& limit) {
  return Sign(limit, Alice());
}

std::optional<double> BurstOf(const SetLimits& set, std::string_view tag, Duration wall) {
  for (const SetLimit& limit : set.InForce(wall)) {
    if (limit.name == tag) return limit.burst;
  }
  return std::nullopt;
}

}    // namespace

// ---- One limit ----

TEST_CASE("a set limit reads back from the line that it is passed on as") {
  const SetLimit limits[] = {TagLimit("login:bob", 10), TagLimit("", 1), TagLimit(std::string("a b\n\\\xff", 6), 2.5),
                             TagLimit("x", 3, kToday, kToday + 1h), Clear("x", kToday + 1us)};
  for (const SetLimit& limit : limits) {
    const SignedLimit with = Signed(limit);
    const auto read = ParseSigned(with.Line());
    REQUIRE(read);
    CHECK(read->limit == limit);
    CHECK(read->key == Alice().key);
    CHECK(IsGenuine(*read));
  }
  SetLimit of_rule = TagLimit("login", 4);
  of_rule.of = LimitOf::kRule;
  CHECK(TextOf(of_rule) == "dthrottle-limit 1 1700000000000000 0 rule 4 2 login");
  CHECK(ParseSigned("- - " + TextOf(of_rule))->local());
}

SetLimit RulesOf(std::string toml, Duration stamp = kToday) {
  return {.of = LimitOf::kRules, .name = toml, .clears = toml.empty(), .stamp = stamp};
}

TEST_CASE("rules are one line, of which there is one whatever they say") {
  const SetLimit rules = RulesOf("[[rule]]\nburst = 1\nrate = 1.0\n");
  CHECK(TextOf(rules) == "dthrottle-limit 1 1700000000000000 0 rules - - [[rule]]\\x0aburst = 1\\x0arate = 1.0\\x0a");
  const auto read = ParseSigned(Signed(rules).Line());
  REQUIRE(read);
  CHECK(read->limit == rules);
  CHECK(IsGenuine(*read));
  const auto cleared = ParseSigned(Signed(RulesOf("", kToday + 1s)).Line());
  REQUIRE(cleared);
  CHECK(cleared->limit.clears);
  CHECK_FALSE(ParseLimit("dthrottle-limit 1 5 0 rules 1 1 x"));
  CHECK(ParseSigned(Signed(RulesOf(std::string(59'000, '#'))).Line()));
  CHECK_FALSE(ParseSigned(Signed(RulesOf(std::string(60'000, '#'))).Line()));
  CHECK_FALSE(ParseSigned(Signed(TagLimit("x", 1)).Line() + std::string(1400, 'x')));

  SetLimits set;
  CHECK(set.Put(Signed(rules), kToday) == SetLimits::Outcome::kTaken);
  CHECK(set.Put(Signed(RulesOf("# other", kToday + 1us)), kToday) == SetLimits::Outcome::kTaken);
  CHECK(set.entries().size() == 1);
  CHECK(set.Put(Signed(rules), kToday) == SetLimits::Outcome::kOlder);
  SetLimits kept;
  CHECK(kept.TakeFile(set.File(kToday), Keys(), kToday).empty());
  CHECK(kept.InForce(kToday) == set.InForce(kToday));
  CHECK(set.Put(*cleared, kToday) == SetLimits::Outcome::kTaken);
  CHECK(set.InForce(kToday + 2s).empty());
}

TEST_CASE("a set limit that is changed in one byte is not genuine") {
  const std::string line = Signed(TagLimit("login:bob", 10)).Line();
  for (std::size_t i = 0; i < line.size(); ++i) {
    std::string changed = line;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    const auto read = ParseSigned(changed);
    CAPTURE(changed);
    CHECK_FALSE((read && IsGenuine(*read)));
  }
}

TEST_CASE("a set limit is refused with what is wrong with it") {
  const auto complaint = [](std::string_view text) {
    const auto read = ParseLimit(text);
    return read ? std::string() : read.error().message;
  };
  CHECK(complaint("dthrottle-limit 1 5 0 tag 0 1 x") == "burst must be a number of tokens from 1 to 1e+09");
  CHECK(complaint("dthrottle-limit 1 5 0 tag nan 1 x") == "burst must be a number of tokens from 1 to 1e+09");
  CHECK(complaint("dthrottle-limit 1 5 0 tag 1 0 x") == "rate must be tokens a second from 1e-06 to 1e+09");
  CHECK(complaint("dthrottle-limit 1 5 0 tag 1e9 1 x") == "burst / rate must be at most 31622400 seconds, a leap year");
  CHECK(complaint("dthrottle-limit 1 5 0 host 1 1 x") == "a limit is of a tag or of a rule, or of all rules");
  CHECK(complaint("dthrottle-limit 1 -5 0 tag 1 1 x") == "the dates must be microseconds since 1970");
  CHECK(complaint("dthrottle-limit 1 5 0 tag 1 1 " + std::string(256, 'x')) == "the name must be at most 255 bytes");
  for (const char* other : {"dthrottle-limit 1 05 0 tag 1 1 x", "dthrottle-limit 1 5 0 tag 1.0 1 x",
                            "dthrottle-limit 1 5 0 tag 1 1 \\x41"}) {
    CHECK(complaint(other) == "must be written in the one way that there is");
  }
  CHECK(complaint("dthrottle-limit 2 5 0 tag 1 1 x").starts_with("must begin with"));
  CHECK(ParseOperatorSecret("# Of alice.\n" + Alice().seed + "\n")->key == Alice().key);
  CHECK_FALSE(ParseOperatorSecret("#"));
}

// ---- The set ----

TEST_CASE("a limit of a tag that no settings file may have is not set, and can be cleared") {
  const auto asked = [](LimitOf of, std::string_view name, bool clears) {
    return LimitAsked(of, name, clears ? "" : "5", clears ? "" : "1", "", {kToday, kToday}).has_value();
  };
  for (const char* name : {"a\nb", "\n", "a\r"}) {
    CHECK_FALSE(asked(LimitOf::kTag, name, false));
    CHECK(asked(LimitOf::kTag, name, true));
  }
  for (const char* name : {"a\rb", "\xff", ""}) CHECK(asked(LimitOf::kTag, name, false));
}

TEST_CASE("a limit ends by the clock where it is set, though its stamp is ahead") {
  const auto asked = LimitAsked(LimitOf::kTag, "x", "5", "1", "1m", {.stamp = kToday + 10min, .wall = kToday + 1ns});
  REQUIRE(asked);
  CHECK(asked->stamp == kToday + 10min);
  CHECK(asked->until == kToday + 1min);
}

TEST_CASE("of a tag the newest limit counts, and an old one that comes again changes nothing") {
  SetLimits set;
  const SignedLimit old = Signed(TagLimit("x", 5)), newer = Signed(TagLimit("x", 7, kToday + 1s));
  CHECK(set.Put(old, kToday) == SetLimits::Outcome::kTaken);
  CHECK(set.Put(newer, kToday) == SetLimits::Outcome::kTaken);
  CHECK(set.Put(old, kToday) == SetLimits::Outcome::kOlder);
  CHECK(set.Put(newer, kToday) == SetLimits::Outcome::kKnown);
  CHECK(BurstOf(set, "x", kToday + 1s) == 7);
}

TEST_CASE("two limits of one instant are settled the same whichever comes first") {
  const SignedLimit a = Signed(TagLimit("x", 5)), b = Signed(TagLimit("x", 7));
  SetLimits one, other;
  one.Put(a, kToday), one.Put(b, kToday);
  other.Put(b, kToday), other.Put(a, kToday);
  CHECK(one.digest() == other.digest());
  CHECK(BurstOf(one, "x", kToday) == BurstOf(other, "x", kToday));
}

TEST_CASE("a limit ends by itself, and what it had replaced does not come back") {
  SetLimits set;
  const SignedLimit before = Signed(TagLimit("x", 5));
  set.Put(before, kToday);
  set.Put(Signed(TagLimit("x", 7, kToday + 1s, kToday + 1h)), kToday + 1s);
  CHECK(set.NextEnd(kToday + 1s) == kToday + 1h);
  CHECK(BurstOf(set, "x", kToday + 1h - 1us) == 7);
  CHECK_FALSE(BurstOf(set, "x", kToday + 1h));
  set.Forget(kToday + 2h);
  CHECK(set.Put(before, kToday + 2h) == SetLimits::Outcome::kOlder);
}

TEST_CASE("what is cleared is remembered for 30 days, and then forgotten") {
  SetLimits set;
  set.Put(Signed(TagLimit("x", 5)), kToday);
  set.Put(Signed(Clear("x", kToday + 1s)), kToday + 1s);
  CHECK(set.InForce(kToday + 1s).empty());
  set.Forget(kToday + SetLimits::kRemembered);
  CHECK(set.digest().count == 1);
  set.Forget(kToday + SetLimits::kRemembered + 1s);
  CHECK(set.digest() == SetLimits::Digest());
  CHECK(set.Put(Signed(Clear("x", kToday + 1s)), kToday + SetLimits::kRemembered + 1s) == SetLimits::Outcome::kOver);
}

TEST_CASE("what was set before the clock went back is kept, and what is set then is newer") {
  SetLimits set, again;
  SetLimit of_rule = TagLimit("login", 4);
  of_rule.of = LimitOf::kRule;
  set.Put(Signed(TagLimit("x", 5)), kToday);
  set.Put(Signed(of_rule), kToday);
  const Duration back = 1h;    // after 1970
  CHECK(again.TakeFile(set.File(kToday), Keys(), back).empty());
  CHECK(again.digest() == set.digest());
  CHECK(again.StampFor(LimitOf::kTag, "x", back) == kToday + 1us);
  CHECK(again.StampFor(LimitOf::kTag, "y", back + 1ns) == back);
  CHECK(again.StampFor(LimitOf::kRules, "", back) == kToday + 1us);
  CHECK(again.Put(Signed(RulesOf("# all", kToday + 1us)), back) == SetLimits::Outcome::kTaken);
  CHECK(again.StampFor(LimitOf::kTag, "y", back) == kToday + 2us);
  CHECK(again.StampFor(LimitOf::kTag, "y", kToday + 1h) == kToday + 1h);

  SetLimits after;    // the clock is right again, and the host was not away since 1970
  CHECK(after.TakeFile(again.File(back), Keys(), kToday + 24h).empty());
  CHECK(after.digest() == again.digest());
}

TEST_CASE("a thousand limits fill the set, and only what has ended makes room") {
  SetLimits set;
  for (std::size_t i = 0; i < SetLimits::kMost; ++i) {
    set.Put({TagLimit(fmt::format("t{}", i), 5), Alice().key, ""}, kToday);
  }
  CHECK(set.Put(Signed(TagLimit("x", 5)), kToday) == SetLimits::Outcome::kCrowded);
  set.Put(Signed(Clear("t7", kToday + 1s)), kToday + 1s);
  CHECK(set.Put(Signed(TagLimit("x", 5)), kToday + 1s) == SetLimits::Outcome::kTaken);
  CHECK(set.Find({LimitOf::kTag, "t7"}) == nullptr);
}

TEST_CASE("a file keeps the set for hosts whose keys allow it") {
  SetLimits set, again, other, late, local;
  set.Put(Signed(TagLimit("x", 5)), kToday);
  set.Put(Signed(Clear("y", kToday)), kToday);
  const std::string file = set.File(kToday);
  CHECK(SetLimits::IsFile(file));
  CHECK(again.TakeFile(file, Keys(), kToday + 1h).empty());
  CHECK(again.digest() == set.digest());
  CHECK(other.TakeFile(file, {}, kToday + 1h).empty());
  CHECK(other.entries().empty());
  CHECK(other.aside() == 2);
  CHECK(late.TakeFile(file, Keys(), kToday + SetLimits::kRemembered + 1h).size() == 1);
  CHECK(late.entries().empty());
  CHECK(late.TakeFile(file + "x\n", Keys(), kToday) == std::vector<std::string>{
                                                           "line 4: must begin with a public key and a signature in "
                                                           "base64"});
  const std::string unsigned_file = fmt::format("{}5\n- - {}\n", SetLimits::kFileBegin, TextOf(TagLimit("x", 5, 5us)));
  CHECK(local.TakeFile(unsigned_file, {}, 5us).empty());
  CHECK(local.digest().count == 0);
  CHECK(local.InForce(5us).size() == 1);
  CHECK(again.TakeFile(unsigned_file, Keys(), 5us).empty());
  CHECK(BurstOf(again, "x", kToday) == 5);
  CHECK(again.digest() == set.digest());
  std::string forged = file;
  forged.replace(forged.find(" tag 5 "), 7, " tag 6 ");
  CHECK(other.TakeFile(forged, Keys(), kToday + 1h) == std::vector<std::string>{
                                                           "line 2: the signature is not that of the key"});
}

TEST_CASE("limits of this host alone are kept however long it was away, and signed ones for 30 days") {
  SetLimits set, late;
  set.Put({TagLimit("x", 5), {}, {}}, kToday);
  set.Put({TagLimit("y", 6, kToday, kToday + 1h), {}, {}}, kToday);
  const Duration wall = kToday + SetLimits::kRemembered + 24h;
  CHECK(late.TakeFile(set.File(kToday), {}, wall).empty());
  CHECK(late.InForce(wall) == set.InForce(wall));
  CHECK(BurstOf(late, "x", wall) == 5);

  SetLimits signed_too;
  set.Put(Signed(TagLimit("z", 7)), kToday);
  CHECK(signed_too.TakeFile(set.File(kToday), {}, wall).size() == 1);
  CHECK(BurstOf(signed_too, "x", wall) == 5);
  CHECK(signed_too.aside() == 0);
}

TEST_CASE("limits whose key goes are set aside, and hold again if it is back within 30 days") {
  const OperatorSecret bob = MakeOperatorSecret();
  const OperatorKeys only_bob = {{bob.key, "bob"}};
  SetLimits set;
  for (const char* name : {"x", "y"}) set.Put(Signed(TagLimit(name, 5)), kToday);
  CHECK_FALSE(set.Keep(Keys(), kToday));
  CHECK(set.Keep(only_bob, kToday + 1h));
  CHECK_FALSE(set.Keep(only_bob, kToday + 1h));
  CHECK(set.entries().empty());
  CHECK(set.digest() == SetLimits::Digest());
  CHECK(set.aside() == 2);
  CHECK(set.Put(Sign(Clear("y", kToday + 2h), bob), kToday + 2h) == SetLimits::Outcome::kTaken);
  CHECK(set.aside() == 1);

  SetLimits kept;
  CHECK(kept.TakeFile(set.File(kToday + 2h), only_bob, kToday + 3h).empty());
  CHECK(kept.File(kToday + 2h) == set.File(kToday + 2h));
  CHECK(kept.Keep(Keys(), kToday + 4h));
  CHECK(BurstOf(kept, "x", kToday + 4h) == 5);
  CHECK_FALSE(BurstOf(kept, "y", kToday + 4h));
  CHECK(kept.aside() == 1);    // that bob has cleared y

  SetLimits with_alice, late;
  const Duration over = kToday + 1h + SetLimits::kRemembered;
  CHECK(with_alice.TakeFile(set.File(over - 1us), Keys(), over - 1us).empty());
  CHECK(BurstOf(with_alice, "x", over) == 5);
  CHECK(late.TakeFile(set.File(over), Keys(), over).empty());
  CHECK(late.entries().empty());
  CHECK_FALSE(set.Keep({{bob.key, "bob"}, {Alice().key, "alice"}}, over));
}

TEST_CASE("of limits that are set aside the newest of a tag counts, and a file has room for all of them") {
  const OperatorSecret bob = MakeOperatorSecret();
  const OperatorKeys only_bob = {{bob.key, "bob"}}, both = {{bob.key, "bob"}, {Alice().key, "alice"}};
  SetLimits set;
  set.Put(Signed(TagLimit("x", 5)), kToday);
  set.Keep(only_bob, kToday);
  set.Put(Sign(TagLimit("x", 6, kToday - 1us), bob), kToday);
  CHECK(BurstOf(set, "x", kToday) == 6);
  CHECK(set.Keep(both, kToday));
  CHECK(BurstOf(set, "x", kToday) == 5);
  CHECK(set.aside() == 0);

  SetLimits full;
  const auto fill = [&](const OperatorSecret& secret, char last) {
    for (std::size_t i = 0; i < SetLimits::kMost; ++i) {
      const std::string name = std::string(250, '\n') + fmt::format("{:04}", i) + last;
      full.Put(Sign(TagLimit(name, 123456.78901234567), secret), kToday);
    }
  };
  fill(Alice(), 'a');
  full.Keep(only_bob, kToday);
  fill(bob, 'b');
  CHECK(full.aside() == SetLimits::kMost);
  CHECK(full.entries().size() == SetLimits::kMost);
  CHECK(full.File(kToday).size() <= SetLimits::kFileBytesMax);
}

TEST_CASE("set limits change rules and overrides, and nothing else") {
  std::vector<Rule> rules(2);
  rules[0].name = "login", rules[0].match = "login:*", rules[1].name = "default";
  std::vector<Override> overrides = {{"partner", 100, 10, Mode::kShadow}};
  SetLimit of_rule = TagLimit("login", 4), of_none = TagLimit("gone", 4);
  of_rule.of = of_none.of = LimitOf::kRule;
  SetLimit old = TagLimit("old", 3), old_of_rule = TagLimit("default", 3);
  old.stamp = old_of_rule.stamp = kToday - 1us, old_of_rule.of = LimitOf::kRule;
  const SetLimit too_long = TagLimit(std::string(200, 'x'), 8);
  Amend({of_rule, of_none, TagLimit("partner", 9), TagLimit("bob", 8), too_long, old, old_of_rule}, kToday, 100, rules,
        overrides);
  CHECK(rules[0].burst == 4);
  CHECK(rules[0].rate == 2);
  CHECK(rules[1].burst == Rule().burst);
  REQUIRE(overrides.size() == 2);
  CHECK(overrides[0].burst == 9);
  CHECK(overrides[0].mode == Mode::kShadow);
  CHECK(overrides[1].tag == "bob");
  CHECK(overrides[1].burst == 8);
}

// ---- A fleet ----

namespace {

// Hosts on a virtual wire that loses and delays frames. Each has links to some of the others.
class Fleet {
 public:
  Fleet(std::size_t n, std::size_t links_each, double loss, std::uint64_t seed) : prng_(seed), loss_(loss) {
    for (std::size_t i = 0; i < n; ++i) {
      Host& host = *hosts_.emplace_back(std::make_unique<Host>(*this, i, Prng(prng_.Next())));
      host.next = Instant() + std::chrono::milliseconds(prng_.Below(1000));
      host.links.resize(n);
      std::iota(host.links.begin(), host.links.end(), LinkId(1));
      std::swap(host.links[i], host.links.back());
      host.links.pop_back();
      for (std::size_t k = 0; k < std::min(links_each, n - 1); ++k) {
        std::swap(host.links[k], host.links[k + prng_.Below(n - 1 - k)]);
      }
      host.links.resize(std::min(links_each, n - 1));
    }
  }

  // In two sites of half of the hosts each; only the first of a site talks to that of the other.
  void Separate() {
    const std::size_t half = hosts_.size() / 2;
    for (auto& host : hosts_) {
      std::erase_if(host->links, [&](LinkId link) { return (link - 1 < half) != (host->index < half); });
    }
    hosts_.front()->abroad = {static_cast<LinkId>(half + 1)};
    hosts_[half]->abroad = {1};
  }

  void Run(Duration time) {
    const Instant end = now_ + time;
    for (; now_ < end; now_ += 1ms) {
      while (!wire_.empty() && wire_.top().at <= now_) {
        const Flight f = wire_.top();    // what is heard may put more on the wire
        wire_.pop();
        Host& to = *hosts_[f.to];
        to.from = f.from;
        const std::string from = std::to_string(f.from);
        if (to.up) to.spreading.OnFrame({f.link, f.route, from, *f.frame}, to, Wall(), now_);
        if (to.up) to.next = now_;
      }
      for (auto& host : hosts_) {
        if (!host->up || host->next > now_) continue;
        host->next = std::min(host->spreading.Tick(Spreading::kPeers, host->links, *host, now_),
                              host->spreading.Tick(Spreading::kSites, host->abroad, *host, now_));
      }
    }
  }

  void Set(std::size_t host, const SetLimit& limit) {
    hosts_[host]->spreading.Set(Signed(limit), Wall());
    hosts_[host]->next = now_;
  }

  std::size_t Knowing(std::string_view tag, double burst) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        hosts_, [&](const auto& host) { return BurstOf(host->set, tag, Wall()) == burst; }));
  }

  std::size_t KnowingRules(std::string_view toml) const {
    return static_cast<std::size_t>(std::ranges::count_if(hosts_, [&](const auto& host) {
      const SignedLimit* const found = host->set.Find({LimitOf::kRules, ""});
      return found != nullptr && found->limit.name == toml;
    }));
  }

  // How long until all of them know it.
  Duration UntilAllKnow(std::string_view tag, double burst) {
    const Instant begun = now_;
    while (Knowing(tag, burst) < hosts_.size() && now_ < begun + 60s) Run(10ms);
    return now_ - begun;
  }

  void SetUp(std::size_t host, bool up) { hosts_[host]->up = up; }
  Duration Wall() const { return kToday + now_.time_since_epoch(); }
  const SetLimitCounts& counts(std::size_t host) const { return hosts_[host]->spreading.counts(); }
  bool Hear(std::size_t host, std::string_view frame, std::string_view from = "liar") {
    return hosts_[host]->spreading.OnFrame({1, {}, from, frame}, *hosts_[host], Wall(), now_);
  }
  std::uint64_t frames() const { return frames_; }

 private:
  struct Host final : Transport {
    Host(Fleet& f, std::size_t i, Prng prng) : fleet(f), index(i), spreading(set, Keys(), prng) {}
    void Ask(LinkId link, const Frame& frame) override {
      fleet.Send({{}, index, link - 1, 0, std::to_string(index + 1), frame});
    }
    void Answer(const Route& route, const Frame& frame) override {
      fleet.Send({{}, index, static_cast<std::size_t>(std::stoul(route)) - 1, static_cast<LinkId>(index + 1), {}, frame});
    }
    bool Publish(const Route&, const Frame&) override { return true; }

    Fleet& fleet;
    const std::size_t index;
    SetLimits set;
    Spreading spreading;
    std::vector<LinkId> links, abroad{};
    Instant next;
    std::size_t from = 0;
    bool up = true;
  };
  struct Flight {
    Instant at;
    std::size_t from, to;
    LinkId link;
    Route route;
    Frame frame;
    bool operator<(const Flight& other) const { return at > other.at; }
  };

  void Send(Flight flight) {
    ++frames_;
    if (static_cast<double>(prng_.Below(1'000'000)) < loss_ * 1e6) return;
    flight.at = now_ + 1ms + std::chrono::milliseconds(prng_.Below(50));
    wire_.push(std::move(flight));
  }

  Prng prng_;
  const double loss_;
  Instant now_{};
  std::uint64_t frames_ = 0;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::priority_queue<Flight> wire_;
};

}    // namespace

TEST_CASE("a limit that is set while there is nobody to tell is kept for nobody, and found when hosts compare") {
  struct Wire final : Transport {
    void Ask(LinkId, const Frame& frame) override { said.push_back(frame); }
    void Answer(const Route&, const Frame&) override {}
    bool Publish(const Route&, const Frame&) override { return true; }
    std::vector<Frame> said;
  } wire;
  SetLimits set;
  Spreading spreading(set, Keys(), Prng(1));
  for (int i = 0; i < 40; ++i) spreading.Set(Signed(TagLimit("x" + std::to_string(i), 5, kToday)), kToday);
  spreading.Tick(Spreading::kSites, std::array<LinkId, 1>{1}, wire, Instant());
  REQUIRE(wire.said.size() == 1);
  LimitMessage message;
  REQUIRE(DecodeLimits(*wire.said.front(), message));
  CHECK(message.kind == LimitMessageKind::kDigest);
  CHECK(message.count == 40);
}

TEST_CASE("a set limit goes from site to site, and is told again where the other one was away") {
  Fleet fleet(40, 39, 0.1, 8);
  fleet.Separate();
  fleet.Run(2s);
  fleet.Set(35, TagLimit("x", 5, fleet.Wall()));
  CHECK(fleet.UntilAllKnow("x", 5) <= 4s);
  fleet.SetUp(20, false);
  fleet.Set(7, TagLimit("x", 6, fleet.Wall()));
  fleet.Run(5s);
  CHECK(fleet.Knowing("x", 6) == 20);
  fleet.SetUp(20, true);
  CHECK(fleet.UntilAllKnow("x", 6) <= 5s);
}

TEST_CASE("a thousand hosts know a set limit within 3 seconds, though one frame in ten is lost") {
  Fleet fleet(1000, 999, 0.1, 7);
  fleet.Run(2s);
  const std::uint64_t before = fleet.frames();
  fleet.Set(3, TagLimit("x", 5, fleet.Wall()));
  const Duration all = fleet.UntilAllKnow("x", 5);
  CHECK(all <= 3s);
  WARN(fmt::format("1,000 hosts knew a set limit after {:.2f} s, by {:.1f} frames each", Seconds(all),
                   static_cast<double>(fleet.frames() - before) / 1000));
  fleet.Set(500, Clear("x", fleet.Wall()));
  fleet.Run(3s);
  CHECK(fleet.Knowing("x", 5) == 0);
}

TEST_CASE("long rules reach every host beside as many limits as there may be, and a host that comes later") {
  Fleet fleet(16, 15, 0.1, 11);
  fleet.Run(1s);
  fleet.SetUp(4, false);
  for (int i = 0; i < 999; ++i) fleet.Set(0, TagLimit(fmt::format("t{}", i), 5, fleet.Wall()));
  const std::string rules(59'000, '#');
  fleet.Set(1, RulesOf(rules, fleet.Wall()));
  fleet.Run(15s);    // hosts look at 200 signatures a second
  CHECK(fleet.KnowingRules(rules) == 15);
  fleet.SetUp(4, true);
  fleet.Run(10s);
  CHECK(fleet.KnowingRules(rules) == 16);
  CHECK(fleet.Knowing("t998", 5) == 16);
  CHECK(fleet.counts(4).junk == 0);
  fleet.Set(9, RulesOf("", fleet.Wall()));
  fleet.Run(10s);
  CHECK(fleet.KnowingRules(rules) == 0);
}

TEST_CASE("hosts of which each hears only three know what was set at any of them") {
  Fleet fleet(64, 3, 0.1, 8);
  fleet.Run(1s);
  fleet.Set(3, TagLimit("x", 5, fleet.Wall()));
  CHECK(fleet.UntilAllKnow("x", 5) < 10s);
}

TEST_CASE("a host that was away gets the whole set, and brings back nothing that was cleared") {
  Fleet fleet(8, 7, 0, 9);
  for (int i = 0; i < 200; ++i) fleet.Set(0, TagLimit(fmt::format("t{}", i), 5, fleet.Wall()));
  fleet.Run(3s);
  REQUIRE(fleet.Knowing("t199", 5) == 8);
  fleet.SetUp(4, false);
  fleet.Set(1, Clear("t7", fleet.Wall()));
  for (int i = 200; i < 300; ++i) fleet.Set(2, TagLimit(fmt::format("t{}", i), 5, fleet.Wall()));
  fleet.Run(3s);
  CHECK(fleet.Knowing("t7", 5) == 1);
  CHECK(fleet.Knowing("t299", 5) == 7);
  fleet.SetUp(4, true);
  fleet.Run(3s);
  CHECK(fleet.Knowing("t7", 5) == 0);
  CHECK(fleet.Knowing("t299", 5) == 8);
}

TEST_CASE("a peer that passes on what no operator has signed changes nothing, and is counted") {
  Fleet fleet(2, 1, 0, 10);
  const auto hear = [&](const std::string& line) {
    fleet.Hear(0, EncodeLimits({.kind = LimitMessageKind::kLimits, .lines = {line}}));
  };
  SignedLimit forged = Signed(TagLimit("x", 5));
  forged.limit.burst = 6;
  hear(forged.Line());
  CHECK(fleet.counts(0).forged == 1);
  hear(Sign(TagLimit("x", 5), MakeOperatorSecret()).Line());
  CHECK(fleet.counts(0).strange == 1);
  hear("- - " + TextOf(TagLimit("x", 5)));
  hear("anything");
  fleet.Hear(0, "DTL\1nothing");
  CHECK(fleet.counts(0).junk == 3);
  hear(Signed(TagLimit("x", 5, fleet.Wall() + 1h)).Line());
  CHECK(fleet.counts(0).ahead == 1);
  CHECK(fleet.Knowing("x", 5) + fleet.Knowing("x", 6) == 0);
  hear(Signed(TagLimit("y", 5, fleet.Wall() + 4min)).Line());
  CHECK(fleet.Knowing("y", 5) == 1);
  hear(Signed(TagLimit("x", 5)).Line());
  CHECK(fleet.Knowing("x", 5) == 1);
  forged = Signed(RulesOf(std::string(50'000, '#')));
  forged.limit.name.back() = '!';
  for (int i = 0; i < 3000; ++i) hear(forged.Line());
  CHECK(fleet.counts(0).forged < 1100);    // reading and checking it are two of the 2,000 that are looked at at once
  CHECK(fleet.counts(0).forged + fleet.counts(0).excess == 3001);
}

TEST_CASE("while a peer says as much as it can, limits that others pass on are taken, and the others are answered") {
  Fleet fleet(3, 2, 0, 11);
  const std::string stranger = Sign(RulesOf(std::string(3000, '#')), MakeOperatorSecret()).Line();
  const auto limits = [](const std::string& line) {
    return EncodeLimits({.kind = LimitMessageKind::kLimits, .lines = {line}});
  };
  for (int i = 0; i < 5000; ++i) CHECK(fleet.Hear(0, limits(stranger)));    // its key is looked at before anything else
  CHECK(fleet.counts(0).strange == 5000);
  SignedLimit forged = Signed(RulesOf(std::string(3000, '#')));
  forged.limit.name.back() = '!';
  const std::string lie = limits(forged.Line()), have = EncodeLimits({.kind = LimitMessageKind::kHave});
  std::size_t refused = 0;
  for (int second = 0; second < 3; ++second) {
    for (int i = 0; i < 2000; ++i) {
      for (std::size_t host = 0; host < 3; ++host) refused += !fleet.Hear(host, i % 2 == 0 ? lie : have);
    }
    if (second == 0) fleet.Set(1, TagLimit("x", 6, fleet.Wall()));
    fleet.Run(1s);
  }
  CHECK(refused > 9000);
  CHECK(fleet.Knowing("x", 6) == 3);
  CHECK(fleet.Hear(0, have, "another"));
}
