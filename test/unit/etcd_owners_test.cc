// The list of owners in etcd (io/etcd_owners.h): several hosts read and write one store, one request at a time, in an
// order that chance chooses.
#include "io/etcd_owners.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "io/etcd_json.h"

namespace dthrottle {
namespace {

using namespace std::chrono_literals;
using etcd::Json;
using Names = std::vector<std::string>;

constexpr BootInstant kBegin{1h};

// As much of etcd as the list needs.
class Store {
 public:
  void Put(const std::string& key, const std::string& value, const std::string& lease = "7") {
    kvs_[key] = {value, ++revision_, lease};
  }
  void Delete(const std::string& key) { kvs_.erase(key); }
  std::string Get(const std::string& key) const { return kvs_.contains(key) ? kvs_.at(key).value : ""; }

  // False: somebody else has written meanwhile.
  bool Txn(const EtcdRequest& request) {
    REQUIRE(request.path == "/v3/kv/txn");
    const Json json = Json::parse(request.body);
    const Json& compare = json.at("compare").at(0);
    const Json& put = json.at("success").at(0).at("request_put");
    REQUIRE(compare.at("target") == "MOD");
    REQUIRE(compare.at("key") == put.at("key"));
    const std::string key = etcd::FromBase64(put.at("key").get<std::string>());
    const std::int64_t revision = kvs_.contains(key) ? kvs_.at(key).revision : 0;
    if (compare.at("mod_revision") != std::to_string(revision)) return false;
    Put(key, etcd::FromBase64(put.at("value").get<std::string>()));
    return true;
  }

  std::string Range(const EtcdRequest& request) const {
    REQUIRE(request.path == "/v3/kv/range");
    const Json json = Json::parse(request.body);
    const std::string from = etcd::FromBase64(json.at("key").get<std::string>()),
                      to = etcd::FromBase64(json.at("range_end").get<std::string>());
    Json kvs = Json::array();
    for (auto kv = kvs_.lower_bound(from); kv != kvs_.end() && kv->first < to; ++kv) {
      kvs.push_back({{"key", etcd::Base64(kv->first)},
                     {"value", etcd::Base64(kv->second.value)},
                     {"mod_revision", std::to_string(kv->second.revision)},
                     {"lease", kv->second.lease}});
    }
    return Json{{"header", {{"revision", std::to_string(revision_)}}}, {"kvs", kvs}}.dump();
  }

 private:
  struct Kv {
    std::string value;
    std::int64_t revision;
    std::string lease;
  };
  std::map<std::string, Kv> kvs_;
  std::int64_t revision_ = 1;
};

EtcdOwners::Step ReadAndNext(EtcdOwners& host, const Store& store, const EtcdOwners::View& view, bool candidate,
                             BootInstant now) {
  REQUIRE(host.OnRead(200, store.Range(host.Read()), now));
  return host.Next(view, candidate, now);
}

std::shared_ptr<const Owners> List(Names names, std::uint64_t number, Names before = {}) {
  return std::make_shared<const Owners>(std::move(names), number, std::move(before));
}

const std::string kA = "tcp://127.0.0.1:1000", kB = "tcp://127.0.0.1:2000", kC = "tcp://127.0.0.1:3000";

TEST_CASE("the text of a list says its number, its owners and those before") {
  const OwnerAddresses list{List({"a", "b"}, 7, {"a"}), {{"a", kA}, {"b", ""}}};
  CHECK(list.Text() == R"({"before":["a"],"number":7,"owners":{"a":"tcp://127.0.0.1:1000","b":""}})");
  const auto again = OwnerAddresses::Parse(list.Text());
  REQUIRE(again);
  CHECK(*again == list);
  CHECK(again->owners->before() == Names{"a"});
  CHECK(again->Connect() == Names{kA + "#a"});
  for (const char* bad :
       {"", "7", "[]", R"({"number":7,"before":[]})", R"({"number":7,"owners":{},"before":[]})",
        R"({"number":0,"owners":{"a":""},"before":[]})", R"({"number":7,"owners":{"a":1},"before":[]})",
        R"({"number":7,"owners":{"a":""},"before":"a"})", R"({"number":7,"owners":{"a":""},"before":[1]})",
        R"({"number":7,"owners":{"a":"srv://_a.b"},"before":[]})",
        R"({"number":7,"owners":{"a":"tcp://127.0.0.1:1#x"},"before":[]})",
        R"({"number":7,"owners":{"a b":""},"before":[]})"}) {
    CAPTURE(bad);
    CHECK_FALSE(OwnerAddresses::Parse(bad));
  }
}

TEST_CASE("the first list has whoever is there after a moment") {
  Store store;
  EtcdOwners a("k", "a"), b("k", "b");
  store.Put("k/a", kA);
  CHECK_FALSE(ReadAndNext(a, store, {}, true, kBegin).write);
  store.Put("k/b", kB);
  store.Put("k-other", "x");    // between the two in etcd's order
  CHECK_FALSE(ReadAndNext(a, store, {}, true, kBegin + 2s).write);
  CHECK_FALSE(ReadAndNext(b, store, {}, true, kBegin + 2s).write);
  const auto step = ReadAndNext(a, store, {}, true, kBegin + EtcdOwners::kGather);
  REQUIRE(step.write);
  CHECK_FALSE(ReadAndNext(b, store, {}, false, kBegin + 10s).write);    // it is to own nothing
  const auto late = ReadAndNext(b, store, {}, true, kBegin + 10s);
  REQUIRE(late.write);
  CHECK(store.Txn(*step.write));
  CHECK_FALSE(store.Txn(*late.write));    // read before that
  CHECK(store.Get("k") ==
        R"({"before":[],"number":2,"owners":{"a":"tcp://127.0.0.1:1000","b":"tcp://127.0.0.1:2000"}})");
  CHECK_FALSE(ReadAndNext(b, store, {}, true, kBegin + 11s).write);
  REQUIRE(b.list());
  CHECK(b.list()->owners->number() == EtcdOwners::kFirst);
}

TEST_CASE("a host whose key has no lease is not there: nobody would take the key out") {
  Store store;
  EtcdOwners a("k", "a");
  const auto two = List({"a", "b"}, 5);
  store.Put("k", OwnerAddresses{two, {{"a", kA}, {"b", kB}}}.Text());
  store.Put("k/a", kA), store.Put("k/b", kB);
  CHECK(ReadAndNext(a, store, {two, nullptr, {}}, true, kBegin).want.empty());
  store.Put("k/b", kB, "0");    // an operator, who means well
  CHECK(ReadAndNext(a, store, {two, nullptr, {}}, true, kBegin).want == Names{"a"});
}

TEST_CASE("an owner is taken out when it is neither there nor heard, by an owner, once all are ready") {
  Store store;
  EtcdOwners a("k", "a"), b("k", "b"), other("k", "other");
  const auto three = List({"a", "b", "c"}, 5);
  store.Put("k", OwnerAddresses{three, {{"a", kA}, {"b", kB}, {"c", kC}}}.Text());
  store.Put("k/a", kA), store.Put("k/b", kB);
  EtcdOwners::View view{three, nullptr, {"b", "c"}};
  CHECK(ReadAndNext(a, store, view, true, kBegin).want.empty());    // heard
  view.up = {"b"};
  store.Put("k/c", kC);
  CHECK(ReadAndNext(a, store, view, true, kBegin).want.empty());    // there
  store.Delete("k/c");
  auto step = ReadAndNext(a, store, view, true, kBegin);
  CHECK(step.want == Names{"a", "b"});
  CHECK_FALSE(step.write);
  CHECK(ReadAndNext(other, store, view, true, kBegin).want.empty());    // owns nothing
  view.proposed = List({"a", "b"}, 6, {"a", "b", "c"});
  step = ReadAndNext(a, store, view, true, kBegin);
  const auto twin = ReadAndNext(b, store, {three, view.proposed, {"a"}}, true, kBegin);
  REQUIRE(step.write);
  REQUIRE(twin.write);
  CHECK(store.Txn(*twin.write));
  CHECK_FALSE(store.Txn(*step.write));    // one of them
  CHECK(store.Get("k") ==
        R"({"before":["a","b","c"],"number":6,"owners":{"a":"tcp://127.0.0.1:1000","b":"tcp://127.0.0.1:2000"}})");
  step = ReadAndNext(a, store, view, true, kBegin);    // it comes into force now
  CHECK(step.want.empty());
  CHECK_FALSE(step.write);
}

TEST_CASE("a host that is there joins, and one that is not to own tags takes itself out") {
  Store store;
  EtcdOwners a("k", "a"), b("k", "b");
  const auto two = List({"a", "b"}, 5);
  store.Put("k", OwnerAddresses{two, {{"a", kA}, {"b", kB}}}.Text());
  store.Put("k/a", kA), store.Put("k/b", kB), store.Put("k/c", kC);
  CHECK(ReadAndNext(a, store, {two, nullptr, {"b"}}, true, kBegin).want == Names{"a", "b", "c"});
  store.Delete("k/c"), store.Delete("k/b");
  CHECK(ReadAndNext(a, store, {two, nullptr, {"b"}}, true, kBegin).want.empty());    // b says so itself
  CHECK(ReadAndNext(b, store, {two, nullptr, {"a"}}, false, kBegin).want == Names{"a"});
  store.Delete("k/a");
  CHECK(ReadAndNext(b, store, {two, nullptr, {}}, false, kBegin).want.empty());    // nobody would be left
  // A proposal of others, or for another list, is none for these.
  store.Put("k/a", kA);
  for (const auto& stale : {List({"a"}, 5, {"a", "b"}), List({"a"}, 7, {"a", "b"}), List({"b"}, 6, {"a", "b"})}) {
    CHECK_FALSE(ReadAndNext(b, store, {two, stale, {"a"}}, false, kBegin).write);
  }
}

TEST_CASE("an address that changes is written without another list") {
  Store store;
  EtcdOwners a("k", "a");
  const auto one = List({"a", "b"}, 5, {"x"});
  store.Put("k", OwnerAddresses{one, {{"a", kA}, {"b", kB}}}.Text());
  store.Put("k/a", kA), store.Put("k/b", kC);
  const auto step = ReadAndNext(a, store, {one, nullptr, {"b"}}, true, kBegin);
  REQUIRE(step.write);
  CHECK(store.Txn(*step.write));
  ReadAndNext(a, store, {one, nullptr, {"b"}}, true, kBegin);
  CHECK(a.list()->at.at("b") == kC);
  CHECK(a.list()->owners->epoch() == one->epoch());
}

TEST_CASE("what etcd has lost is written again, and what is no list is left alone") {
  Store store;
  EtcdOwners a("k", "a");
  const auto list = List({"a"}, 9, {"b"});
  store.Put("k/a", kA);
  const EtcdOwners::View view{list, nullptr, {}};
  for (const std::string old : {"", R"({"before":[],"number":3,"owners":{"z":""}})"}) {
    CAPTURE(old);
    if (!old.empty()) store.Put("k", old);
    const auto step = ReadAndNext(a, store, view, true, kBegin);
    REQUIRE(step.write);
    CHECK(store.Txn(*step.write));
    CHECK(store.Get("k") == R"({"before":["b"],"number":9,"owners":{"a":"tcp://127.0.0.1:1000"}})");
  }
  CHECK_FALSE(ReadAndNext(a, store, view, true, kBegin).write);
  store.Put("k", "something else");
  const auto step = ReadAndNext(a, store, view, true, kBegin);
  CHECK_FALSE(step.write);
  CHECK(step.want.empty());
  CHECK(a.trouble().find("the value of k must be") == 0);
  CHECK(a.list()->owners->number() == 9);    // stays
  CHECK_FALSE(a.OnRead(503, R"({"error":"etcdserver: no leader"})", kBegin));
  CHECK(a.trouble() == "etcdserver: no leader");
  for (const char* odd : {"", "7", R"({"kvs":7})", R"({"kvs":[7,{"key":"!"}]})"}) {
    CAPTURE(odd);
    a.OnRead(200, odd, kBegin);
    a.Next(view, true, kBegin);
  }
}

TEST_CASE("the last number is refused, for no list could follow") {
  Store store;
  EtcdOwners a("k", "a");
  const auto last = List({"a", "b"}, Owners::kNumberMost);
  store.Put("k/a", kA);
  CHECK_FALSE(ReadAndNext(a, store, {last, nullptr, {"a"}}, true, kBegin).write);
  store.Put("k", OwnerAddresses{last, {{"a", kA}, {"b", kB}}}.Text());
  CHECK_FALSE(ReadAndNext(a, store, {List({"a"}, 5), nullptr, {}}, true, kBegin).write);
  CHECK(a.trouble().find("a number below 1099511627775") != std::string::npos);
}

TEST_CASE("where no owner is left, hosts that are to own tags take over") {
  Store store;
  EtcdOwners d("k", "d");
  const auto gone = List({"a", "b"}, 5);
  store.Put("k", OwnerAddresses{gone, {{"a", kA}, {"b", kB}}}.Text());
  store.Put("k/d", kC);
  CHECK_FALSE(ReadAndNext(d, store, {gone, nullptr, {}}, true, kBegin).write);
  CHECK_FALSE(ReadAndNext(d, store, {gone, nullptr, {"a"}}, true, kBegin + 5s).write);
  store.Put("k/b", kB);
  CHECK_FALSE(ReadAndNext(d, store, {gone, nullptr, {}}, true, kBegin + 5s).write);
  store.Delete("k/b");
  const auto step = ReadAndNext(d, store, {gone, nullptr, {}}, true, kBegin + 5s);
  REQUIRE(step.write);
  CHECK(store.Txn(*step.write));
  CHECK(store.Get("k") == R"({"before":["a","b"],"number":6,"owners":{"d":"tcp://127.0.0.1:3000"}})");
}

}    // namespace
}    // namespace dthrottle
