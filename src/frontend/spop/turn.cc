#include "frontend/spop/turn.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>

namespace dthrottle {

namespace {

// Arguments with a meaning of their own; any other names a tag.
constexpr std::string_view kTag = "tag", kCost = "cost", kPeek = "peek";

std::string_view Reason(SpopStatus status) {
  switch (status) {
    case SpopStatus::kNormal:
      return "normal";
    case SpopStatus::kTooBig:
      return "frame is too big";
    case SpopStatus::kInvalid:
      return "invalid frame received";
    case SpopStatus::kNoVersion:
      return "version value not found";
    case SpopStatus::kNoFrameSize:
      return "max-frame-size value not found";
    case SpopStatus::kNoCapabilities:
      return "capabilities value not found";
    case SpopStatus::kBadVersion:
      return "unsupported version";
    case SpopStatus::kBadFrameSize:
      return "max-frame-size too big or too small";
    case SpopStatus::kFragmented:
      return "fragmentation not supported";
  }
  return "";
}

// A cost that is not there is one token.
std::optional<Cost> CostOf(const SpopValue& value) {
  if (value.kind == SpopValue::Kind::kNull) return Cost{1};
  if (value.kind == SpopValue::Kind::kBytes) return ReadCost(value.bytes);
  if (value.kind != SpopValue::Kind::kInteger || value.number < 0) return std::nullopt;
  if (value.number > std::int64_t{std::numeric_limits<Cost>::max()}) return std::nullopt;
  return static_cast<Cost>(value.number);
}

// What HAPROXY-HELLO says.
struct HaproxyHello {
  bool has_version = false, speaks_2 = false, has_capabilities = false, is_check = false;
  std::int64_t frame_bytes_max = 0;

  void Take(std::string_view name, const SpopValue& value) {
    if (name == "supported-versions") {
      has_version = true;
      speaks_2 = value.bytes.starts_with("2.") || value.bytes.find(",2.") != value.bytes.npos ||
                 value.bytes.find(", 2.") != value.bytes.npos;
    } else if (name == "max-frame-size") {
      frame_bytes_max = value.number;
    } else if (name == "capabilities") {
      has_capabilities = true;
    } else if (name == "healthcheck") {
      is_check = value.number != 0;
    }
  }

  SpopStatus status() const {
    if (!has_version) return SpopStatus::kNoVersion;
    if (!speaks_2) return SpopStatus::kBadVersion;
    if (frame_bytes_max == 0) return SpopStatus::kNoFrameSize;
    if (frame_bytes_max < static_cast<std::int64_t>(SpopReader::kFrameBytesMin)) return SpopStatus::kBadFrameSize;
    return has_capabilities ? SpopStatus::kNormal : SpopStatus::kNoCapabilities;
  }
};

}    // namespace

SpopTurn::SpopTurn(Limiter& limiter, std::size_t lane, Prng prng, std::size_t tag_bytes_max)
    : asking_(limiter, {lane, "spop"}, prng, tag_bytes_max) {}

// ---- Taking frames ----

// Types that are not known are passed over, as the protocol wants it.
void SpopTurn::OnFrame(SpopClient& client, const SpopFrame& frame) {
  if (!frame.whole) return Dismiss(client, SpopStatus::kFragmented);
  switch (static_cast<SpopType>(frame.type)) {
    case SpopType::kHaproxyHello:
      return OnHello(client, frame.payload);
    case SpopType::kHaproxyDisconnect:
      return Dismiss(client, SpopStatus::kNormal);
    case SpopType::kNotify:
      return client.frame_bytes_max > 0 ? OnNotify(client, frame) : Dismiss(client, SpopStatus::kInvalid);
    default:
      return;
  }
}

void SpopTurn::OnHello(SpopClient& client, std::string_view payload) {
  HaproxyHello hello;
  SpopCursor cursor(payload);
  while (!cursor.empty()) {
    const std::string_view name = cursor.Text();
    hello.Take(name, cursor.Value());
  }
  if (cursor.failed() || client.frame_bytes_max > 0) return Dismiss(client, SpopStatus::kInvalid);
  if (const SpopStatus status = hello.status(); status != SpopStatus::kNormal) return Dismiss(client, status);
  const auto bytes_max = std::min<std::int64_t>(hello.frame_bytes_max, SpopReader::kFrameBytesMax);
  client.frame_bytes_max = static_cast<std::size_t>(bytes_max);
  client.leaving = hello.is_check;
  const std::size_t begin = texts_.size();
  {
    SpopWriter frame(texts_, SpopType::kAgentHello, 0, 0);
    frame.Pair("version", "2.0");
    frame.Pair("max-frame-size", static_cast<std::uint32_t>(bytes_max));
    frame.Pair("capabilities", "pipelining");
  }
  replies_.push_back({false, begin, texts_.size(), 0, 0, 0});
}

void SpopTurn::Dismiss(SpopClient& client, SpopStatus status) {
  client.leaving = true;
  counts_.protocol_errors += status != SpopStatus::kNormal;
  const std::size_t begin = texts_.size();
  {
    SpopWriter frame(texts_, SpopType::kAgentDisconnect, 0, 0);
    frame.Pair("status-code", static_cast<std::uint32_t>(status));
    frame.Pair("message", Reason(status));
  }
  replies_.push_back({false, begin, texts_.size(), 0, 0, 0});
}

void SpopTurn::OnNotify(SpopClient& client, const SpopFrame& frame) {
  const std::size_t begin = asking_.size();
  SpopCursor cursor(frame.payload);
  std::size_t messages = 0;
  while (!cursor.empty() && ++messages <= kMessagesMax) {
    if (!ReadMessage(cursor)) ++counts_.errors;
  }
  if (cursor.failed() || messages > kMessagesMax) {
    while (asking_.size() > begin) asking_.Drop();    // nobody would hear what became of them
    return Dismiss(client, SpopStatus::kInvalid);
  }
  counts_.questions += asking_.size() - begin;
  replies_.push_back({true, begin, asking_.size(), frame.stream_id, frame.frame_id, client.frame_bytes_max});
}

// Begins the message's question, unless it names no tag. False: what it asks for cannot be, and it is not asked.
bool SpopTurn::ReadMessage(SpopCursor& cursor) {
  cursor.Text();    // the message's name
  const std::size_t n = cursor.Byte();
  SpopCursor arguments = cursor;
  bool peek = false;
  for (std::size_t i = 0; i < n; ++i) {
    const bool is_peek = cursor.Text() == kPeek;
    const SpopValue value = cursor.Value();
    if (is_peek) peek = value.number != 0;
  }
  if (cursor.failed()) return true;    // which ends the connection
  asking_.Begin(peek ? Verb::kPeek : Verb::kTake);
  bool good = true, any = false;
  for (std::size_t i = 0; i < n && good; ++i) {
    const std::string_view name = arguments.Text();
    const SpopValue value = arguments.Value();
    if (name == kPeek || name == kCost || value.kind == SpopValue::Kind::kNull) continue;
    SpopCursor next = arguments;
    const bool has_cost = i + 1 < n && next.Text() == kCost;
    const std::optional<Cost> cost = has_cost ? CostOf(next.Value()) : Cost{1};
    good = cost.has_value() && NameTag(name, value, *cost);
    any = true;
  }
  if (!good || !any) asking_.Drop();
  return good;
}

// "tag" brings a whole tag; any other argument NAME is the tag "NAME:VALUE".
bool SpopTurn::NameTag(std::string_view name, const SpopValue& value, Cost cost) {
  if (name == kTag && value.kind == SpopValue::Kind::kBytes) return asking_.Name(value.bytes, cost).has_value();
  std::string& tag = tags_.emplace_back();
  if (name != kTag) (tag += name) += ':';
  value.AppendText(tag);
  return asking_.Name(tag, cost).has_value();
}

// ---- Answering ----

void SpopTurn::Answer(Instant now) {
  asking_.Answer(now);
  for (const Reply& reply : replies_) {
    reply.ack ? AppendAck(reply) : void(answers_.text().append(texts_, reply.begin, reply.end - reply.begin));
    answers_.End();
  }
}

// Variables are those of the first question that is refused, or else of the first.
void SpopTurn::AppendAck(const Reply& reply) {
  SpopWriter ack(answers_.text(), SpopType::kAck, reply.stream_id, reply.frame_id);
  if (reply.begin == reply.end) return;
  std::size_t shown = reply.begin;
  for (std::size_t i = reply.end; i-- > reply.begin;) {
    if (!asking_.refusal(i).has_value()) continue;
    if (asking_.verb(i) == Verb::kTake) ++counts_.refused;
    shown = i;
  }
  const auto refusal = asking_.refusal(shown);
  ack.SetBool("deny", refusal.has_value());
  std::optional<std::int64_t> left;
  for (std::size_t i = 0; i < asking_.tags(shown); ++i) {
    const auto its = asking_.tag(shown, i).left;
    if (its.has_value()) left = std::min(left.value_or(*its), *its);
  }
  if (refusal.has_value()) {
    left = asking_.tag(shown, refusal->tag).left;
    ack.SetText("why", refusal->why);
    if (refusal->wait.has_value()) {
      ack.SetInteger("wait", refusal->WaitMs(0));
      ack.SetInteger("retry", std::chrono::ceil<std::chrono::seconds>(*refusal->wait).count());
    }
  }
  if (left.has_value()) ack.SetInteger("left", *left);
  if (!refusal.has_value()) return;
  // HAProxy serves what is answered by too long a frame. All but the tag fits into the shortest that may be agreed.
  const Asking::Tag tag = asking_.tag(shown, refusal->tag);
  ack.SetText("rule", tag.rule);
  ack.SetText("tag", tag.written.substr(0, std::min(kShownTagBytesMax, ack.RoomForText("tag", reply.bytes_max))));
}

void SpopTurn::Clear() {
  asking_.Clear();
  replies_.clear();
  tags_.clear();
  Answers::Empty(texts_);
  answers_.Clear();
}

}    // namespace dthrottle
