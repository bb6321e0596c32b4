#include "io/etcd_value.h"

#include <utility>

#include "io/clock.h"
#include "io/etcd_json.h"

namespace dthrottle {

namespace {

constexpr Duration kReadEvery = std::chrono::seconds(2);
constexpr Duration kAnswerPatience = std::chrono::seconds(2), kBetweenWatches = std::chrono::seconds(2);
constexpr Duration kWatchMax = std::chrono::minutes(1);    // then a new one begins, of the member that is read then

}    // namespace

EtcdValue::EtcdValue(uv_loop_t* loop, EtcdCluster cluster, std::string key, OnValue on_value)
    : timer_(loop, [this] { Read(); }),
      etcd_(loop, std::move(cluster)),
      key_(std::move(key)),
      on_value_(std::move(on_value)) {}

void EtcdValue::ReadSoon() {
  timer_.StartNowAndEvery(kReadEvery);
}

void EtcdValue::Read() {
  again_ = reading_;
  if (std::exchange(reading_, true)) return;
  const EtcdRequest read{"/v3/kv/range", etcd::Json{{"key", etcd::Base64(key_)}}.dump()};
  etcd_.Post(read, kAnswerPatience, [this](const FetchedReply& reply) {
    reading_ = false;
    OnReply(reply);
    if (again_) ReadSoon();
  });
}

void EtcdValue::OnReply(const FetchedReply& reply) {
  const etcd::Json json = etcd::Json::parse(reply.body, nullptr, false);
  const std::string trouble = reply.status == 0 ? reply.body : etcd::Trouble(reply.status, json);
  trouble_ = etcd_.Of(trouble);
  if (!trouble.empty()) return etcd_.AskNext();
  heard_ = BootNow();
  if (!watching_ && (!watched_at_ || *heard_ - *watched_at_ >= kBetweenWatches)) Watch();
  const etcd::Json& kv = etcd::First(etcd::Member(json, "kvs"));
  const std::int64_t revision = etcd::Number(kv, "mod_revision");
  if (std::exchange(revision_, revision) == revision) return;
  on_value_(revision == 0 ? std::nullopt : std::optional(etcd::FromBase64(etcd::Text(etcd::Member(kv, "value")))));
}

// Its first piece says that it has begun. What changed before that is read then.
void EtcdValue::Watch() {
  watching_ = true;
  watched_at_ = heard_;
  const EtcdRequest watch{"/v3/watch", etcd::Json{{"create_request", {{"key", etcd::Base64(key_)}}}}.dump()};
  etcd_.Listen(
      watch, kWatchMax, [this] { ReadSoon(); }, [this](const FetchedReply&) { watching_ = false; });
}

void EtcdValue::Close() {
  etcd_.Close();
  timer_.Close();
}

}    // namespace dthrottle
