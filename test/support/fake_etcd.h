// As much of etcd's JSON gateway as an election uses, on a clock that the test moves. What it leaves out of its answers
// is what etcd leaves out: numbers that are zero, and false.
#pragma once

#include <sodium.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/time.h"

namespace dthrottle::testing {

class FakeEtcd {
 public:
  struct Answer {
    int status;
    std::string body;
  };

  // Leases that have ended are found every half second, as by etcd.
  void Advance(BootInstant now) {
    if (!leader || now < swept_ + std::chrono::milliseconds(500)) return;
    swept_ = now;
    std::erase_if(leases_, [&](const auto& entry) {
      if (entry.second.end > now) return false;
      if (held && held->lease == entry.first) Delete();
      return true;
    });
  }

  // A new leader gives every lease its whole time again.
  void Elect(BootInstant now) {
    leader = true;
    for (auto& [id, lease] : leases_) lease.end = now + lease.ttl;
  }

  Answer Post(std::string_view path, std::string_view body, BootInstant now) {
    if (!leader) return {503, R"({"error":"etcdserver: no leader","code":14,"message":"etcdserver: no leader"})"};
    const Json request = Json::parse(body);
    if (path == "/v3/lease/grant") return Grant(request, now);
    if (path == "/v3/lease/keepalive") return KeepAlive(request, now);
    if (path == "/v3/lease/revoke") return Revoke(request);
    if (path == "/v3/kv/range") return Ok(Range());
    if (path == "/v3/kv/txn") return Claim(request);
    return {404, "404 page not found"};
  }

  void Delete() {
    held.reset();
    ++revision_;
  }

  // As `etcdctl put` does: without a lease, and the revision of creation stays.
  void Put(std::string value) {
    held->value = std::move(value);
    held->lease = 0;
    ++revision_;
  }

  struct Held {
    std::string value;    // base64
    std::int64_t lease;
    std::uint64_t revision;
  };
  std::optional<Held> held;
  bool leader = true;

 private:
  using Json = nlohmann::json;
  struct Lease {
    Duration ttl;
    BootInstant end;
  };

  Json Header() const { return {{"revision", std::to_string(revision_)}}; }
  static Answer Ok(const Json& json) { return {200, json.dump()}; }
  static std::int64_t Id(const Json& json) { return std::stoll(json.at("ID").get<std::string>()); }

  Answer Grant(const Json& request, BootInstant now) {
    const Duration ttl = std::chrono::seconds(request.at("TTL").get<std::int64_t>());
    leases_[++last_lease_] = {ttl, now + ttl};
    return Ok({{"header", Header()},
               {"ID", std::to_string(last_lease_)},
               {"TTL", std::to_string(ttl.count() / 1'000'000'000)}});
  }

  Answer KeepAlive(const Json& request, BootInstant now) {
    Json result = {{"header", Header()}, {"ID", request.at("ID")}};
    const auto found = leases_.find(Id(request));
    if (found != leases_.end()) {
      found->second.end = now + found->second.ttl;
      result["TTL"] = std::to_string(found->second.ttl.count() / 1'000'000'000);
    }
    return Ok({{"result", result}});
  }

  Answer Revoke(const Json& request) {
    leases_.erase(Id(request));
    if (held && held->lease == Id(request)) Delete();
    return Ok({{"header", Header()}});
  }

  Json Range() const {
    Json answer = {{"header", Header()}};
    if (!held) return answer;
    answer["count"] = "1";
    answer["kvs"] = Json::array({Json{{"create_revision", std::to_string(held->revision)},
                                      {"lease", std::to_string(held->lease)},
                                      {"value", held->value}}});
    return answer;
  }

  Answer Claim(const Json& request) {
    const Json& put = request.at("success").at(0).at("request_put");
    const std::int64_t lease = std::stoll(put.at("lease").get<std::string>());
    if (held) return Ok({{"header", Header()}, {"responses", Json::array({Json{{"response_range", Range()}}})}});
    if (!leases_.contains(lease)) {
      return {404, R"({"error":"etcdserver: requested lease not found","code":5,"message":"gone"})"};
    }
    held = Held{put.at("value").get<std::string>(), lease, ++revision_};
    return Ok({{"header", Header()}, {"succeeded", true}});
  }

  std::uint64_t revision_ = 1;
  std::int64_t last_lease_ = 7587848390000000000;    // beyond what a double holds
  std::map<std::int64_t, Lease> leases_;
  BootInstant swept_{};
};

}    // namespace dthrottle::testing
