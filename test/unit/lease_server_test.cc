// The lease server: what a client, a server behind it, an elector and a change of settings get to see.
#include <catch2/catch.hpp>

#include "lease/server.h"

namespace dthrottle::lease {
namespace {

using namespace std::chrono_literals;

BootInstant At(Duration since) {
  return BootInstant(since);
}

Templates Of(std::vector<ResourceTemplate> list) {
  return *Templates::Make(std::move(list));
}

constexpr auto kFair = [](double capacity) { return ResourceTemplate{.identifier_glob = "*", .capacity = capacity}; };

// A master since 0 s, whose learning mode ends at 60 s.
struct Server : LeaseServer {
  explicit Server(ResourceTemplate how, ServerOptions options = {}) : LeaseServer(std::move(options), Of({how})) {
    BecomeMaster({.epoch = 7, .former = 5});
  }

  Grant Ask(std::string_view client, double wants, BootInstant now, std::optional<Claim> has = {}) {
    const ResourceRequest request{.resource = "r", .wants = wants, .has = has};
    return GetCapacity(client, {&request, 1}, now)->front();
  }

  Grant AskForMany(std::string_view server, std::uint64_t clients, double wants, BootInstant now,
                   double outstanding = 0, std::optional<Claim> has = {}, bool learning = false) {
    const Band band{0, clients, wants};
    const ServerResourceRequest request{"r", outstanding, {&band, 1}, has, learning};
    return GetServerCapacity(server, {&request, 1}, now)->front();
  }

  double has(BootInstant now) {
    const auto resources = Resources(now);
    return resources.empty() ? 0 : resources.front().has;
  }
};

TEST_CASE("lease server: a client that does not know what it wants is taken to want what it did, or an equal part") {
  Server server(kFair(1000));
  const ResourceRequest unknown{.resource = "r", .spare = true, .unknown = true};
  server.Ask("busy", 800, At(70s));
  for (const char* idle : {"a", "b", "c"}) server.Ask(idle, 5, At(70s));
  CHECK(server.GetCapacity("busy", {&unknown, 1}, At(75s))->front().lease.capacity >= 800);
  server.GetCapacity("new", {&unknown, 1}, At(76s));
  const double wants = server.Resources(At(76s)).front().wants;
  CHECK(wants == 800 + 3 * 5 + 1000.0 / 5);
  // A lease that has ended says nothing any more, but counts until it is dropped.
  server.Ask("busy", 800, At(1000s));
  server.GetCapacity("busy", {&unknown, 1}, At(2000s));
  CHECK(server.Resources(At(2000s)).front().wants == 1000.0 / 2);
}

TEST_CASE("lease server: the next process of the node goes on with the leases, and learns nothing anew") {
  Server before(kFair(100));
  before.ExtendMastership(At(1000s));
  before.Ask("a", 80, At(70s));
  before.Ask("b", 80, At(75s));
  before.AskForMany("s", 3, 30, At(80s));
  const Grant a = before.Ask("a", 80, At(90s));
  const std::string kept = before.Keep();

  LeaseServer after({}, Of({kFair(100)}));
  REQUIRE(after.Resume(kept));
  CHECK(after.epoch() == 7);
  CHECK(after.IsMaster(At(95s)));
  const auto status = after.Resources(At(95s));
  REQUIRE(status.size() == 1);
  CHECK(status[0].has == before.Resources(At(95s)).front().has);
  CHECK(status[0].holders == 3);
  CHECK(status[0].clients == 5);
  CHECK_FALSE(status[0].learning_until.has_value());
  // Nobody gets what others hold, and who asks too soon is told of the lease that it has.
  const ResourceRequest request{.resource = "r", .wants = 80};
  CHECK(after.GetCapacity("new", {&request, 1}, At(95s))->front().lease.capacity <= 100 - status[0].has);
  const Grant again = after.GetCapacity("a", {&request, 1}, At(90s + 500ms))->front();
  CHECK(again.outcome == Grant::Outcome::kTooSoon);
  CHECK(again.lease.capacity == a.lease.capacity);
  CHECK(again.lease.expiry == a.lease.expiry);
  CHECK(after.Resources(At(1000s)).empty());    // leases end when they would have
}

TEST_CASE("lease server: what was kept is read whole or not at all, and within the bounds of now") {
  Server before(kFair(100));
  for (const char* client : {"a", "b", "c"}) before.Ask(client, 10, At(70s));
  const std::string kept = before.Keep();
  for (std::size_t size = 0; size < kept.size(); ++size) {
    LeaseServer after({}, Of({kFair(100)}));
    REQUIRE_FALSE(after.Resume(kept.substr(0, size)));
    REQUIRE(after.epoch() == 0);
  }
  LeaseServer small({.id = "n", .clients_max = 2}, Of({kFair(100)})),
      other({}, Of({{.identifier_glob = "q", .capacity = 1}}));
  REQUIRE(small.Resume(kept));
  CHECK(small.Resources(At(71s)).front().holders == 2);
  REQUIRE(other.Resume(kept));
  CHECK(other.Resources(At(71s)).empty());
  before.Resign({});
  CHECK(before.Keep().empty());
}

TEST_CASE("lease server: the next process keeps the leases of resources whose templates it does not know yet") {
  Server before(kFair(100));
  CHECK(before.Ask("a", 100, At(100s)).lease.capacity == 100);
  LeaseServer between({}, Of({}));    // what resources there are it never reads
  REQUIRE(between.Resume(before.Keep()));
  LeaseServer after({}, Of({}));
  REQUIRE(after.Resume(between.Keep()));
  CHECK(after.Resources(At(110s)).empty());
  after.SetTemplates(Of({kFair(100)}), At(110s));
  REQUIRE(after.Resources(At(110s)).size() == 1);
  CHECK(after.Resources(At(110s)).front().has == 100);
  const ResourceRequest request{.resource = "r", .wants = 100};
  CHECK(after.GetCapacity("b", {&request, 1}, At(110s))->front().lease.capacity == 0);
  CHECK(after.GetCapacity("b", {&request, 1}, At(161s))->front().lease.capacity == 100);
}

TEST_CASE("lease templates: the exact name first, then the first glob that matches") {
  const Templates templates = Of({{.identifier_glob = "db:*", .capacity = 1},
                                  {.identifier_glob = "db:orders", .capacity = 2},
                                  {.identifier_glob = "*s", .capacity = 3}});
  CHECK(templates.Find("db:orders")->capacity == 2);
  CHECK(templates.Find("db:users")->capacity == 1);
  CHECK(templates.Find("users")->capacity == 3);
  CHECK(templates.Find("other") == nullptr);
  CHECK_FALSE(Templates::Make({{.identifier_glob = "[a"}}).has_value());
}

TEST_CASE("lease templates: what no template is for is refused, or gets what it wants at once and is counted") {
  const ResourceRequest asked{.resource = "typo", .wants = 70};
  LeaseServer refuses({}, Of({{.identifier_glob = "db:*"}}));
  refuses.BecomeMaster({.since = At(100s)});
  CHECK(refuses.GetCapacity("c", {&asked, 1}, At(101s))->front().outcome == Grant::Outcome::kNoTemplate);
  LeaseServer honours({}, *Templates::Make({{.identifier_glob = "db:*"}}, Unknown::kHonour));
  honours.BecomeMaster({.since = At(100s)});
  const Grant grant = honours.GetCapacity("c", {&asked, 1}, At(101s))->front();
  CHECK((grant.leased() && grant.lease.capacity == 70 && grant.safe_capacity == kUnlimited));
  CHECK((honours.counts().honoured == 1 && honours.counts().no_template == 0 && refuses.counts().no_template == 1));
}

TEST_CASE("lease terms: half the refresh interval with every level, never beyond the server's own lease") {
  const ResourceTemplate how{};
  CHECK(RefreshInterval(how, 0) == 16s);
  CHECK(RefreshInterval(how, 4) == 1s);
  CHECK(RefreshInterval({.identifier_glob = "*", .decay_factor = 1}, 8) == 16s);
  CHECK(RefreshInterval({.identifier_glob = "*", .decay_factor = 0.25}, 2) == 1s);
  const Lease whole = MakeLease(how, 2, 5, {}, At(100s));
  CHECK((whole.expiry == At(160s) && whole.refresh_interval == 4s && whole.capacity == 5));
  const Lease cut = MakeLease(how, 0, 5, At(110s), At(100s));
  CHECK((cut.expiry == At(110s) && cut.refresh_interval == 9s));
  const Lease last = MakeLease(how, 0, 5, At(101s), At(100s));
  CHECK((last.expiry == At(101s) && last.refresh_interval == 500ms));
  CHECK(MakeLease(how, 0, 5, At(90s), At(100s)).refresh_interval == 0s);
}

TEST_CASE("lease server: in learning mode everybody keeps what he has, to the last instant of it") {
  Server server(kFair(100));
  CHECK(server.Ask("a", 80, At(10s), Claim{30, At(50s), 5}).lease.capacity == 30);
  CHECK(server.Ask("b", 80, At(10s)).lease.capacity == 0);
  CHECK(server.Ask("c", 80, At(10s), Claim{30, At(9s), 5}).lease.capacity == 0);    // expired
  CHECK(server.Ask("b", 80, At(18s)).learns_for == 42s);
  CHECK(server.Ask("b", 80, At(60s)).learning);
  CHECK(server.Ask("a", 80, At(60s), Claim{30, At(70s), 7}).lease.capacity == 30);
  const Grant after = server.Ask("b", 80, At(60s + 1s));
  CHECK_FALSE(after.learning);
  CHECK(after.lease.capacity == Approx(100.0 / 3));    // "c" wants something, too, until its lease has expired
  CHECK(server.Ask("a", 80, At(70s)).lease.capacity == 50);
}

// What lasts so long: leases, and so learning mode.
ResourceTemplate Lasting(Duration length, const char* glob = "*") {
  return {.identifier_glob = glob, .capacity = 100, .lease_length = length};
}

TEST_CASE("lease server: learning mode ends when it was to end as mastership began, whatever the settings say later") {
  Server server(Lasting(60s));
  const auto learning = [&](std::string_view resource, BootInstant now) {
    const ResourceRequest request{.resource = resource, .wants = 10};
    return server.GetCapacity("a", {&request, 1}, now)->front().learning;
  };
  SECTION("what has learned has learned") {
    CHECK(server.Ask("a", 50, At(61s)).lease.capacity == 50);
    server.SetTemplates(Of({Lasting(1h)}), At(70s));
    const Grant grant = server.Ask("a", 80, At(70s));
    CHECK((grant.lease.capacity == 80 && !grant.learning));
    CHECK_FALSE(server.Resources(At(70s)).front().learning_until.has_value());
    CHECK_FALSE(learning("first asked for now", At(71s)));
  }
  SECTION("what learns ends as it was told, also for who asks later") {
    CHECK(server.Ask("a", 50, At(10s)).learns_for == 50s);
    server.SetTemplates(Of({Lasting(1h)}), At(20s));
    CHECK(server.Ask("a", 50, At(20s)).learns_for == 40s);
    CHECK((learning("new", At(60s)) && !learning("new", At(62s)) && !learning("a", At(61s))));
    server.SetTemplates(Of({Lasting(1s)}), At(30s));    // leases of before are as long as they are
    CHECK(learning("r", At(60s)));
  }
  SECTION("a resource that was not there may have been leased out by the master before") {
    server.SetTemplates(Of({Lasting(60s, "r")}), At(0s));
    server.BecomeMaster({.epoch = 7});
    server.SetTemplates(Of({Lasting(60s, "r"), Lasting(1h, "fresh"), Lasting(20s, "short")}), At(10s));
    CHECK((learning("r", At(10s)) && learning("fresh", At(10s)) && learning("short", At(10s))));
    CHECK((learning("short", At(20s)) && !learning("short", At(21s))));
    CHECK((learning("fresh", At(60s)) && !learning("fresh", At(61s))));
    server.SetTemplates(Of({Lasting(60s, "r"), Lasting(1h, "later")}), At(70s));
    CHECK_FALSE(learning("later", At(70s)));
  }
  SECTION("without any resource at the beginning the usual length of a lease counts") {
    server.SetTemplates(Of({}), At(0s));
    server.BecomeMaster({.epoch = 7});
    server.SetTemplates(Of({Lasting(1h, "fresh")}), At(10s));
    CHECK((learning("fresh", At(60s)) && !learning("fresh", At(61s))));
  }
  SECTION("people may end it sooner") {
    CHECK(learning("r", At(10s)));
    ResourceTemplate how = Lasting(60s);
    how.learning_mode_duration = 15s;
    server.SetTemplates(Of({how}), At(12s));
    CHECK((learning("r", At(15s)) && !learning("r", At(17s)) && !learning("new", At(17s))));
    how.learning_mode_duration = 40s;
    server.SetTemplates(Of({how}), At(18s));
    CHECK_FALSE(learning("r", At(19s)));
  }
  SECTION("the next process knows when it ends") {
    LeaseServer after({}, Of({Lasting(1h)}));
    REQUIRE(after.Resume(server.Keep()));
    const ResourceRequest request{.resource = "r", .wants = 10};
    CHECK(after.GetCapacity("a", {&request, 1}, At(20s))->front().learns_for == 40s);
    CHECK_FALSE(after.GetCapacity("a", {&request, 1}, At(61s))->front().learning);
  }
  SECTION("the next master begins with what the settings say then") {
    server.SetTemplates(Of({Lasting(1h)}), At(70s));
    server.BecomeMaster({.epoch = 9, .since = At(100s)});
    CHECK(server.Ask("a", 1, At(100s)).learns_for == 1h);
  }
}

TEST_CASE("lease server: templates that are awaited count as the ones with which mastership began") {
  const ResourceRequest request{.resource = "r", .wants = 10};
  const auto learns_for = [&](LeaseServer& server, BootInstant now) {
    return server.GetCapacity("a", {&request, 1}, now)->front().learns_for;
  };
  LeaseServer server({.id = "n", .awaits_templates = true}, Of({}));
  server.BecomeMaster({.epoch = 7, .former = 5});
  SECTION("they come") {
    server.SetTemplates(Of({Lasting(30s)}), At(1s), true);    // the file is read again
    CHECK(learns_for(server, At(1s)) == 29s);
    server.SetTemplates(Of({Lasting(60s)}), At(2s));
    CHECK(learns_for(server, At(2s)) == 58s);
    server.SetTemplates(Of({Lasting(1h)}), At(3s), true);    // nothing is awaited any more
    CHECK(learns_for(server, At(3s)) == 57s);
  }
  SECTION("they come to the next process") {
    LeaseServer after({.id = "n", .awaits_templates = true}, Of({}));
    REQUIRE(after.Resume(server.Keep()));
    after.SetTemplates(Of({Lasting(60s)}), At(2s));
    CHECK(learns_for(after, At(2s)) == 58s);
    LeaseServer last({.id = "n", .awaits_templates = true}, Of({}));
    REQUIRE(last.Resume(after.Keep()));
    last.SetTemplates(Of({Lasting(1h)}), At(3s));
    CHECK(learns_for(last, At(3s)) == 57s);
  }
  SECTION("the next process does not wait for them") {
    LeaseServer after({}, Of({Lasting(60s)}));
    REQUIRE(after.Resume(server.Keep()));
    CHECK(learns_for(after, At(2s)) == 58s);
  }
}

TEST_CASE("lease server: whoever would wait past the end of learning mode comes back sooner") {
  Server server(kFair(100));
  CHECK(server.Ask("a", 1, At(10s)).lease.refresh_interval == 16s);
  CHECK(server.Ask("b", 1, At(50s)).lease.refresh_interval == 13s);
}

TEST_CASE("lease server: a claim from before the last master counts for the safe capacity at most") {
  Server server(kFair(100));
  CHECK(server.Ask("a", 80, At(1s), Claim{80, At(50s), 5}).lease.capacity == 80);
  CHECK(server.Ask("b", 80, At(1s), Claim{80, At(50s), 4}).lease.capacity == 50);
  CHECK(server.Ask("c", 80, At(1s), Claim{80, At(50s), 0}).lease.capacity == Approx(100.0 / 3));
  CHECK(server.Ask("d", 80, At(1s), Claim{80, At(50s), 9}).lease.capacity == 25);    // of a master to come
  CHECK(server.counts().capped_claims == 3);

  SECTION("where nobody knows the former master, no client's claim takes from another one's") {
    server.BecomeMaster({.epoch = 7});
    CHECK(server.Ask("a", 80, At(1s), Claim{80, At(50s), 3}).lease.capacity == 80);
    CHECK(server.Ask("liar", 80, At(1s), Claim{80, At(50s), 6}).lease.capacity == 80);
    CHECK(server.Ask("b", 80, At(1s), Claim{80, At(50s), 3}).lease.capacity == 80);
    CHECK(server.Ask("c", 80, At(1s), Claim{80, At(50s), 0}).lease.capacity == 25);
    CHECK(server.Ask("d", 80, At(1s), Claim{80, At(50s), 9}).lease.capacity == 20);
  }
}

TEST_CASE("lease server: only the master answers, as long as its mastership lasts, and a new one has no state") {
  Server server(kFair(100));
  const ResourceRequest request{.resource = "r", .wants = 1};
  CHECK(server.Ask("a", 10, At(100s)).epoch == 7);
  server.ExtendMastership(At(110s));
  CHECK(server.GetCapacity("b", {&request, 1}, At(110s - 1ns)).has_value());
  CHECK_FALSE(server.GetCapacity("c", {&request, 1}, At(110s)).has_value());
  CHECK_FALSE(server.ReleaseCapacity(HolderKind::kClient, "a", {}, At(110s)));
  server.Resign("other:1");
  CHECK((server.epoch() == 0 && server.master() == "other:1" && server.Resources(At(100s)).empty()));
  server.BecomeMaster({.epoch = 9, .since = At(200s)});
  CHECK(server.Ask("a", 10, At(201s)).lease.capacity == 0);
  CHECK(server.Ask("a", 10, At(300s)).epoch == 9);
}

TEST_CASE("lease server: nothing is given twice: leases that are out count until they expire or come back") {
  Server server(kFair(100));
  CHECK(server.Ask("a", 100, At(100s)).lease.capacity == 100);
  CHECK(server.Ask("b", 100, At(101s)).lease.capacity == 0);
  SECTION("come back at a refresh") {
    CHECK(server.Ask("a", 100, At(110s)).lease.capacity == 50);
    CHECK(server.Ask("b", 100, At(110s)).lease.capacity == 50);
  }
  SECTION("expire") {
    CHECK(server.Ask("b", 100, At(160s - 1ns)).lease.capacity == 0);
    CHECK(server.Ask("b", 100, At(162s)).lease.capacity == 100);
    CHECK(server.counts().expired == 1);
  }
  SECTION("are released") {
    const std::string_view resource = "r";
    CHECK(server.ReleaseCapacity(HolderKind::kServer, "a", {&resource, 1}, At(102s)));
    CHECK(server.has(At(102s)) == 100);    // a client is no server
    CHECK(server.ReleaseCapacity(HolderKind::kClient, "a", {&resource, 1}, At(102s)));
    CHECK(server.Ask("b", 100, At(103s)).lease.capacity == 100);
  }
}

TEST_CASE("lease server: leases that end together are dropped some at a time, and their holders come as new ones") {
  Server server(kFair(1000));
  const auto name = [](int i) { return "c" + std::to_string(i); };
  for (int i = 0; i < 1000; ++i) server.Ask(name(i), 1, At(100s));
  const BootInstant end = server.Holders("r", 1).front().has.expiry;
  server.Expire(end - 1ns);
  CHECK(server.counts().expired == 0);
  server.Expire(end);
  server.Expire(end);
  CHECK(server.counts().expired == 200);
  // Nothing of it is kept for who comes back, and each request drops one more.
  const Grant back = server.Ask(name(999), 1, end);
  CHECK(back.lease.capacity == 1);
  CHECK(back.lease.expiry > end);
  CHECK(server.counts().expired == 202);
  for (int calls = 0; calls < 4; ++calls) server.Expire(end + 1ns * (calls + 1));
  CHECK(server.counts().expired == 1000);
  CHECK(server.Resources(end + 1s).front().holders == 1);
  CHECK(server.has(end + 1s) == 1);
}

TEST_CASE("lease server: where leases have ended, there is room for as many clients") {
  Server server(kFair(1000), {.id = "n", .clients_max = 500});
  for (int i = 0; i < 500; ++i) server.Ask("old" + std::to_string(i), 1, At(100s));
  const BootInstant end = server.Holders("r", 1).front().has.expiry;
  for (int i = 0; i < 500; ++i) REQUIRE(server.Ask("new" + std::to_string(i), 1, end).leased());
  CHECK(server.Resources(end).front().holders == 500);
}

TEST_CASE("lease server: a request within the minimum interval changes nothing") {
  Server server(kFair(100));
  server.Ask("a", 10, At(100s));
  const Grant again = server.Ask("a", 90, At(101s - 1ns));
  CHECK(again.outcome == Grant::Outcome::kTooSoon);
  CHECK((again.lease.capacity == 10 && again.lease.expiry == At(160s)));
  CHECK(server.Ask("a", 90, At(101s)).lease.capacity == 90);
  CHECK(server.counts().too_soon == 1);
}

TEST_CASE("lease server: what cannot be is refused, counted, and changes nothing") {
  ServerOptions options;
  options.clients_max = 2;
  options.resources_max = 1;
  Server server(kFair(100), options);
  const auto outcome = [&](std::string_view client, std::string_view resource, double wants) {
    const ResourceRequest request{.resource = resource, .wants = wants};
    return server.GetCapacity(client, {&request, 1}, At(100s))->front().outcome;
  };
  CHECK(outcome("", "r", 1) == Grant::Outcome::kInvalid);
  CHECK(outcome(std::string(256, 'a'), "r", 1) == Grant::Outcome::kInvalid);
  CHECK(outcome("a", "r", -1) == Grant::Outcome::kInvalid);
  CHECK(outcome("a", "r", std::numeric_limits<double>::quiet_NaN()) == Grant::Outcome::kInvalid);
  CHECK(outcome("a", "r", std::numeric_limits<double>::infinity()) == Grant::Outcome::kInvalid);
  CHECK(server.Resources(At(100s)).empty());
  CHECK(outcome("a", "r", 1) == Grant::Outcome::kLeased);
  CHECK(outcome("b", "r", 1) == Grant::Outcome::kLeased);
  CHECK(outcome("c", "r", 1) == Grant::Outcome::kFull);
  CHECK(outcome("a", "other", 1) == Grant::Outcome::kFull);
  const std::vector<Band> many(Store::kBandsMax + 1, Band{0, 1, 1});
  const ServerResourceRequest bands{"r", 0, many};
  CHECK(server.GetServerCapacity("s", {&bands, 1}, At(100s))->front().outcome == Grant::Outcome::kInvalid);
  CHECK((server.counts().invalid == 6 && server.counts().full == 2));
  server.SetTemplates(Of({{.identifier_glob = "x"}}), At(100s));
  CHECK(outcome("a", "r", 1) == Grant::Outcome::kNoTemplate);
  CHECK(outcome("d", "x", 1) == Grant::Outcome::kLeased);    // those of "r" take no room of it
}

TEST_CASE("lease server: what is leased out of a resource counts until its end, also while no template is for it") {
  Server server(kFair(100));
  CHECK(server.Ask("a", 60, At(100s)).lease.capacity == 60);
  CHECK(server.Ask("b", 30, At(100s)).lease.capacity == 30);
  const ResourceRequest request{.resource = "r", .wants = 100};
  const auto leave = [&](BootInstant now) { server.SetTemplates(Of({{.identifier_glob = "x"}}), now); };
  leave(At(110s));
  CHECK(server.GetCapacity("c", {&request, 1}, At(110s))->front().outcome == Grant::Outcome::kNoTemplate);
  CHECK(server.Resources(At(110s)).empty());
  SECTION("it comes back before") {
    server.SetTemplates(Of({kFair(100)}), At(120s));
    REQUIRE(server.Resources(At(120s)).size() == 1);
    CHECK(server.Resources(At(120s)).front().holders == 2);
    CHECK(server.Ask("c", 100, At(120s)).lease.capacity == 10);
    CHECK(server.Ask("c", 100, At(160s)).lease.capacity == 100);
  }
  SECTION("some is given back meanwhile") {
    const std::string_view resource = "r";
    CHECK(server.ReleaseCapacity(HolderKind::kClient, "a", {&resource, 1}, At(115s)));
    CHECK(server.counts().released == 1);
    server.SetTemplates(Of({kFair(100)}), At(120s));
    CHECK(server.has(At(120s)) == 30);
  }
  SECTION("it comes back after") {
    CHECK_FALSE(server.Expire(At(160s)));
    CHECK(server.counts().expired == 2);
    server.SetTemplates(Of({kFair(100)}), At(161s));
    CHECK(server.Ask("c", 100, At(161s)).lease.capacity == 100);
  }
  SECTION("a new master knows nothing of it") {
    server.BecomeMaster({.epoch = 8, .since = At(111s)});
    server.SetTemplates(Of({kFair(100)}), At(120s));
    CHECK(server.has(At(120s)) == 0);
  }
}

TEST_CASE("lease server: resources without a template take as many holders as those with one, and no room of theirs") {
  ServerOptions options;
  options.clients_max = 2;
  options.resources_max = 1;
  Server server(kFair(100), options);
  const auto both = [&](std::string_view resource, BootInstant now) {
    const ResourceRequest request{.resource = resource, .wants = 10};
    for (const char* client : {"a", "b"}) CHECK(server.GetCapacity(client, {&request, 1}, now)->front().leased());
  };
  const auto only = [&](const char* glob, BootInstant now) {
    server.SetTemplates(Of({{.identifier_glob = glob, .capacity = 100}}), now);
  };
  both("r", At(100s));
  only("x", At(101s));
  both("x", At(102s));
  only("y", At(103s));    // there is no more room for what is out of "x"
  only("[rx]", At(104s));
  const auto back = server.Resources(At(104s));
  REQUIRE(back.size() == 1);
  CHECK((back[0].resource == "r" && back[0].holders == 2));
  CHECK(server.Ask("c", 1, At(104s)).outcome == Grant::Outcome::kFull);
}

TEST_CASE("lease server: new settings reach a client at its next request") {
  Server server(kFair(100));
  CHECK(server.Ask("a", 200, At(100s)).lease.capacity == 100);
  server.SetTemplates(Of({kFair(30)}), At(105s));
  CHECK(server.has(At(105s)) == 100);
  CHECK(server.counts().shortfalls == 1);
  CHECK(server.Resources(At(105s)).front().shortfall == 70);
  CHECK(server.Ask("a", 200, At(116s)).lease.capacity == 30);
  server.SetTemplates(Of({kFair(300)}), At(117s));
  CHECK(server.Ask("a", 200, At(120s)).lease.capacity == 200);
}

TEST_CASE("lease server: the safe capacity is the one of the settings, or an equal part for everybody") {
  Server server(kFair(120));
  for (const char* client : {"a", "b", "c", "d"}) server.Ask(client, 1, At(100s));
  CHECK(server.AskForMany("s", 3, 1, At(100s)).safe_capacity == Approx(120.0 / 7));
  ResourceTemplate how = kFair(120);
  for (const double safe : {kUnlimited, 0.0, 5.0}) {
    how.safe_capacity = safe;
    server.SetTemplates(Of({how}), At(110s));
    CHECK(server.Ask("a", 1, At(110s + std::chrono::seconds(static_cast<int>(safe) + 2))).safe_capacity == safe);
  }
}

TEST_CASE("lease server: in learning mode nobody is told of a safe capacity above what it claims, or 0 without a claim") {
  Server server(kFair(100));
  CHECK(server.Ask("a", 80, At(1s), Claim{30, At(50s), 5}).safe_capacity == 30);
  CHECK(server.Ask("a", 80, At(1s + 500ms), Claim{30, At(50s), 5}).safe_capacity == 30);    // too soon
  CHECK(server.Ask("b", 80, At(1s)).safe_capacity == 0);
  CHECK(server.AskForMany("s", 1, 80, At(2s), 60, Claim{70, At(50s), 5}).safe_capacity == Approx(100.0 / 3));
  // It claims what it has heard of so far, and keeps what it had.
  server.AskForMany("t", 1, 80, At(2s), 20, Claim{20, At(50s), 5});
  CHECK(server.AskForMany("t", 1, 80, At(4s), 5, Claim{5, At(50s), 5}, true).safe_capacity == 20);
  CHECK(server.Ask("b", 80, At(61s)).safe_capacity == Approx(100.0 / 3));
  ResourceTemplate how = kFair(100);
  how.safe_capacity = 7;
  Server said(how);
  CHECK(said.Ask("a", 80, At(1s), Claim{3, At(50s), 5}).safe_capacity == 7);
}

// ---- A tree ----

Server Child() {
  return Server(kFair(100), {.id = "child", .level = 1, .has_parent = true});
}

// The child asks, the parent answers.
void Exchange(Server& child, Server& parent, BootInstant now) {
  for (const ParentRequest& request : child.AskParent(now)) {
    const ServerResourceRequest asked{request.resource, request.outstanding, request.wants, request.has,
                                      request.learning};
    child.HearParent(request.resource, parent.GetServerCapacity("child", {&asked, 1}, now)->front(), now);
  }
}

TEST_CASE("lease tree: a server hands out what it holds, for no longer than it holds it") {
  Server child = Child();
  CHECK(child.NextAsk() == BootInstant::max());
  CHECK(child.Ask("a", 50, At(100s)).lease.capacity == 0);
  CHECK(child.NextAsk() == At(100s));
  const std::vector<ParentRequest> asked = child.AskParent(At(100s));
  REQUIRE(asked.size() == 1);
  CHECK(asked[0].wants == std::vector{Band{0, 1, 50}});
  CHECK_FALSE(asked[0].has.has_value());
  CHECK(child.NextAsk() == At(116s));    // until the parent says when
  child.HearParent("r", {.lease = {40, At(120s), 4s}, .share = 40, .epoch = 3}, At(101s));
  CHECK(child.NextAsk() == At(105s));
  const Grant grant = child.Ask("a", 50, At(102s));
  CHECK((grant.lease.capacity == 40 && grant.lease.expiry == At(120s) && grant.lease.refresh_interval == 8s));
  CHECK(child.AskParent(At(105s))[0].has->capacity == 40);
  CHECK(child.Ask("a", 50, At(120s)).lease.capacity == 0);
}

TEST_CASE("lease tree: without its parent a server goes on with the safe capacity, and claims what is out of it") {
  Server child(kFair(100), {.id = "c", .level = 1, .has_parent = true, .falls_to_safe = true});
  CHECK(child.Ask("a", 50, At(100s)).lease.refresh_interval == 2s);    // nothing yet: it is to come back soon
  child.AskParent(At(100s));
  child.HearParent("r", {.lease = {40, At(120s), 4s}, .share = 40, .safe_capacity = 7, .epoch = 3}, At(101s));
  CHECK(child.Ask("a", 50, At(102s)).lease.capacity == 40);
  CHECK(child.Resources(At(102s)).front().from == "parent");
  child.Expire(At(130s));    // its clients' leases have ended with its own, and it is not forgotten
  CHECK(child.Resources(At(130s)).front().from == "safe");
  const Grant safe = child.Ask("a", 50, At(130s));
  CHECK((safe.lease.capacity == 7 && safe.lease.expiry == At(190s)));
  child.AskParentAgain(At(131s));
  CHECK(child.NextAsk() == At(131s));
  const ParentRequest asked = child.AskParent(At(131s)).front();
  REQUIRE(asked.has.has_value());
  CHECK((asked.has->capacity == 7 && asked.has->expiry == At(190s) && asked.has->epoch == 3));
  child.HearParent("r", {.lease = {30, At(191s), 4s}, .share = 30, .safe_capacity = 7, .epoch = 4}, At(132s));
  CHECK(child.Ask("a", 50, At(133s)).lease.capacity == 30);
}

TEST_CASE("lease tree: a grant of an older master than the last one's is dropped") {
  Server child = Child();
  child.Ask("a", 50, At(100s));
  child.HearParent("r", {.lease = {40, At(160s), 4s}, .share = 40, .epoch = 3}, At(101s));
  child.HearParent("r", {.lease = {90, At(160s), 4s}, .share = 90, .epoch = 2}, At(101s));
  CHECK(child.Ask("a", 100, At(102s)).lease.capacity == 40);
  CHECK(child.counts().stale_grants == 1);
}

TEST_CASE("lease tree: where no lease of the greater token lasts any more, a parent is heard whatever its token") {
  Server child = Child();
  child.Ask("a", 50, At(100s));
  child.HearParent("r", {.lease = {40, At(120s), 4s}, .share = 40, .epoch = 3}, At(101s));
  const Grant other{.lease = {30, At(180s), 4s}, .share = 30, .epoch = 2};
  child.HearParent("r", other, At(120s - 1ns));
  CHECK(child.counts().stale_grants == 1);
  child.HearParent("r", other, At(120s));
  CHECK(child.counts().stale_grants == 1);
  CHECK(child.Ask("a", 50, At(121s)).lease.capacity == 30);
}

TEST_CASE("lease tree: clients are asked for by priority, servers among them, the least important together") {
  Server child = Child();
  for (int i = 0; i < 100; ++i) {
    const ResourceRequest request{.resource = "r", .priority = i, .wants = 1};
    child.GetCapacity("c" + std::to_string(i), {&request, 1}, At(100s));
  }
  const Band behind[] = {{99, 10, 5}, {-1, 1, 2}};
  const ServerResourceRequest server{"r", 0, behind};
  child.GetServerCapacity("s", {&server, 1}, At(100s));
  const std::vector<Band> wants = child.AskParent(At(100s))[0].wants;
  REQUIRE(wants.size() == Store::kBandsMax);
  CHECK(wants.front() == Band{99, 11, 6});
  CHECK(wants[1] == Band{98, 1, 1});
  CHECK(wants.back() == Band{36, 38, 39});    // 0 to 36 and the one of -1
  const auto ask = [&](int i, double amount) {
    const ResourceRequest request{.resource = "r", .priority = i % 4, .wants = amount};
    child.GetCapacity("c" + std::to_string(i), {&request, 1}, At(110s));
  };
  for (int i = 0; i < 100; ++i) ask(i, i == 7 ? kCapacityMax : 0.25);
  child.Expire(At(165s));    // the server has gone
  CHECK(child.AskParent(At(165s))[0].wants ==
        std::vector<Band>{{3, 25, kCapacityMax}, {2, 25, 6.25}, {1, 25, 6.25}, {0, 25, 6.25}});
}

TEST_CASE("lease tree: a parent takes what a server asks, however much its clients want and claim together") {
  Server child = Child(), root(kFair(1000)), top(kFair(1000));
  child.BecomeMaster({.epoch = 7, .since = At(100s), .former = 5});    // it is learning
  child.Ask("honest", 100, At(101s));
  const Claim most{kCapacityMax, At(300s), 5};
  for (const char* client : {"a", "b"}) child.Ask(client, kCapacityMax, At(101s), most);
  const auto relay = [](Server& from, Server& to, const char* node, BootInstant now) {
    const ParentRequest asked = from.AskParent(now).front();
    const ServerResourceRequest request{"r", asked.outstanding, asked.wants, asked.has, asked.learning};
    CHECK(asked.outstanding <= kCapacityMax);
    const Grant grant = to.GetServerCapacity(node, {&request, 1}, now)->front();
    from.HearParent("r", grant, now);
    return grant.outcome;
  };
  CHECK(relay(child, root, "child", At(102s)) == Grant::Outcome::kLeased);
  // And a server of servers, each with as many clients as a band may have.
  Server middle = Child();
  const Band bands[] = {{1, 1'000'000'000, kCapacityMax}, {0, 1'000'000'000, kCapacityMax}};
  for (const char* server : {"a", "b"}) {
    const ServerResourceRequest request{"r", 0, bands};
    middle.GetServerCapacity(server, {&request, 1}, At(101s));
  }
  CHECK(middle.AskParent(At(101s)).front().wants ==
        std::vector<Band>{{1, 1'000'000'000, kCapacityMax}, {0, 1'000'000'000, kCapacityMax}});
  CHECK(relay(middle, top, "middle", At(102s)) == Grant::Outcome::kLeased);
}

TEST_CASE("lease tree: no grant is more than a child reads") {
  Server unlimited({.identifier_glob = "*", .capacity = 1, .algorithm = Algorithm::kNone});
  const Band bands[] = {{1, 1, kCapacityMax}, {0, 1, kCapacityMax}};
  const ServerResourceRequest request{"r", 0, bands};
  const Grant grant = unlimited.GetServerCapacity("child", {&request, 1}, At(100s))->front();
  CHECK(grant.lease.capacity == kCapacityMax);
  CHECK(grant.share == kCapacityMax);
}

TEST_CASE("lease tree: a server counts for as many as are behind it") {
  Server root(kFair(100));
  root.AskForMany("s", 3, 1000, At(100s));
  CHECK(root.Ask("a", 1000, At(100s)).lease.capacity == 0);
  CHECK(root.AskForMany("s", 3, 1000, At(102s)).lease.capacity == 75);
  CHECK(root.Ask("a", 1000, At(103s)).lease.capacity == 25);
}

TEST_CASE("lease tree: a server whose new master is learning keeps what it had") {
  Server root(kFair(100));
  root.AskForMany("s", 5, 80, At(100s));
  root.Ask("a", 100, At(101s));
  CHECK(root.AskForMany("s", 1, 10, At(110s), 5, {}, true).lease.capacity == 80);
  CHECK(root.Resources(At(110s)).front().wants == 180);
  CHECK(root.AskForMany("s", 5, 10, At(120s), 80, Claim{80, At(170s), 7}).lease.capacity == 10);
}

TEST_CASE("lease tree: with new masters at both levels, what clients claim is claimed from the parent") {
  Server root(kFair(100));
  Server child = Child();
  child.Ask("a", 50, At(1s), Claim{30, At(40s), 5});
  Exchange(child, root, At(2s));
  const auto grant = child.Ask("a", 50, At(3s), Claim{30, At(40s), 7});
  CHECK(grant.lease.capacity == 30);
  CHECK(root.has(At(3s)) == 30);
  CHECK(grant.lease.expiry > At(40s));
}

TEST_CASE("lease tree: as long as a new master holds nothing, it prolongs no lease") {
  Server child = Child();
  const Grant grant = child.Ask("a", 50, At(1s), Claim{30, At(40s), 5});
  CHECK((grant.lease.capacity == 30 && grant.lease.expiry == At(40s)));
}

TEST_CASE("lease tree: strict: a server keeps what it has leased out, and is told to divide less") {
  ResourceTemplate how = kFair(100);
  SECTION("not strict: there is a shortfall until it has come back") {
    Server root(how);
    Server child = Child();
    child.Ask("a", 80, At(100s));
    Exchange(child, root, At(100s));
    CHECK(child.Ask("a", 80, At(102s)).lease.capacity == 80);
    root.Ask("b", 100, At(103s));
    Exchange(child, root, At(104s));
    CHECK(root.Ask("b", 100, At(105s)).lease.capacity == 50);
    CHECK(child.Resources(At(105s)).front().shortfall == 30);
    CHECK(child.counts().shortfalls == 1);
  }
  SECTION("strict") {
    how.strict = true;
    Server root(how);
    Server child(how, {.id = "child", .level = 1, .has_parent = true});
    child.Ask("a", 80, At(100s));
    Exchange(child, root, At(100s));
    CHECK(child.Ask("a", 80, At(102s)).lease.capacity == 80);
    CHECK(root.Ask("b", 100, At(103s)).lease.capacity == 20);
    Exchange(child, root, At(104s));
    CHECK(root.Ask("b", 100, At(105s)).lease.capacity == 20);
    CHECK(child.Resources(At(105s)).front().shortfall == 0);
    CHECK(child.Ask("a", 80, At(110s)).lease.capacity == 50);
    Exchange(child, root, At(112s));
    CHECK(root.Ask("b", 100, At(113s)).lease.capacity == 50);
    CHECK(child.counts().shortfalls == 0);
  }
  SECTION("strict: a server that asks too soon is told the same share") {
    how.strict = true;
    Server root(how);
    root.AskForMany("a", 1, 80, At(100s));
    root.AskForMany("b", 1, 100, At(100s));
    CHECK(root.AskForMany("a", 1, 80, At(102s), 80).share == 50);
    const std::string kept = root.Keep();
    const Grant again = root.AskForMany("a", 1, 80, At(102s + 500ms), 80);
    CHECK((again.outcome == Grant::Outcome::kTooSoon && again.lease.capacity == 80 && again.share == 50));
    Server next(how);
    REQUIRE(next.Resume(kept));
    CHECK(next.AskForMany("a", 1, 80, At(102s + 500ms), 80).share == 50);
  }
}

TEST_CASE("lease server: with source capacity it divides what it is told that it holds") {
  ResourceTemplate how = kFair(1000);
  how.source = Source::kCapacity;
  Server server(how);
  CHECK(server.Ask("a", 50, At(100s)).lease.capacity == 0);
  server.SetHeld("r", 20, 20, At(130s), At(101s));
  const Grant grant = server.Ask("a", 50, At(102s));
  CHECK((grant.lease.capacity == 20 && grant.lease.expiry == At(130s)));
  server.SetHeld("r", 20, 12, At(140s), At(103s));    // the rest is to come back
  CHECK(server.Ask("a", 50, At(104s)).lease.capacity == 12);
  server.SetHeld("r", 5, 5, At(140s), At(105s));
  CHECK(server.counts().shortfalls == 1);
}

TEST_CASE("lease server: holders are listed in the order in which their leases expire") {
  Server server(kFair(100));
  server.Ask("a", 1, At(100s));
  server.Ask("b", 2, At(101s));
  server.AskForMany("s", 4, 8, At(102s));
  server.Ask("a", 3, At(103s));
  const auto holders = server.Holders("r", 10);
  REQUIRE(holders.size() == 3);
  CHECK((holders[0].id == "b" && holders[1].id == "s" && holders[2].id == "a"));
  CHECK((holders[1].is_server && holders[1].clients == 4 && holders[1].wants == 8));
  CHECK(server.Holders("r", 1).size() == 1);
  CHECK(server.Holders("x", 1).empty());
}

}    // namespace
}    // namespace dthrottle::lease
