// How to put "may this tag be served?" to the services that are compared.
//
// Each of the protocols asks with fixed text around the tag, once or several times, and answers with one line, so a
// protocol is data: the texts of the request, and a function that judges a reply line. Judging is exact; what a
// service in good health would not have said is kWrong.
#pragma once

#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace dthrottle::bench {

// Every tag of a run has this size: that of an IPv4 address written out.
inline constexpr std::size_t kTagBytes = 15;

// The limit where the asker or the generator has to know it; the daemon has its own in its settings.
inline constexpr std::uint64_t kBurst = 10;
inline constexpr std::string_view kBurstText = "10";
inline constexpr std::string_view kRateText = "1";    // tokens/s

enum class Reply {
  kAllowed,
  kDenied,
  kAbsent,    // no counter for this tag yet: ask once more, with the create request
  kWrong,
};

struct Request {
  std::vector<std::string> around;    // the tag stands between any two of them
  Reply (*judge)(std::string_view line) = nullptr;    // the line without its LF
};

struct Protocol {
  Request ask;
  Request create;    // only where a reply may be kAbsent
};

// "OK LEFT..." or "NO WHY..."
inline Reply JudgeQuestion(std::string_view line) {
  if (line.starts_with("OK ")) return Reply::kAllowed;
  if (line.starts_with("NO limit ")) return Reply::kDenied;
  return Reply::kWrong;
}

inline Reply JudgeLine(std::string_view line) {
  if (line == "OK") return Reply::kAllowed;
  if (line == "NO") return Reply::kDenied;
  return Reply::kWrong;
}

// A counter allows until it has passed the burst. It counts refused queries too: that is what such a limiter
// does.
inline Reply JudgeCounter(std::string_view digits) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size()) return Reply::kWrong;
  return value <= kBurst ? Reply::kAllowed : Reply::kDenied;
}

inline Reply JudgeRedisCounter(std::string_view line) {
  if (!line.starts_with(':') || !line.ends_with('\r')) return Reply::kWrong;
  return JudgeCounter(line.substr(1, line.size() - 2));
}

inline Reply JudgeRedisBucket(std::string_view line) {
  if (line == ":1\r") return Reply::kAllowed;
  if (line == ":0\r") return Reply::kDenied;
  return Reply::kWrong;
}

inline Reply JudgeMemcached(std::string_view line) {
  if (line == "NOT_FOUND\r") return Reply::kAbsent;
  if (!line.ends_with('\r')) return Reply::kWrong;
  return JudgeCounter(line.substr(0, line.size() - 1));
}

// NOT_STORED is legitimate: another connection created the counter of this tag in between.
inline Reply JudgeMemcachedCreate(std::string_view line) {
  return line == "STORED\r" || line == "NOT_STORED\r" ? Reply::kAllowed : Reply::kWrong;
}

// The token bucket that applications commonly keep in Redis: a hash of tokens and time per tag, refilled when
// asked, forgotten after twice the time it takes to fill. KEYS: tag. ARGV: burst, rate.
inline constexpr std::string_view kBucketScript = R"(
local burst, rate = tonumber(ARGV[1]), tonumber(ARGV[2])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1e6
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'time')
local tokens = tonumber(bucket[1]) or burst
local elapsed = math.max(0, now - (tonumber(bucket[2]) or now))
tokens = math.min(burst, tokens + elapsed * rate)
local allowed = 0
if tokens >= 1 then
  tokens = tokens - 1
  allowed = 1
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'time', now)
redis.call('EXPIRE', KEYS[1], math.ceil(2 * burst / rate))
return allowed
)";

// The same for several keys, all or nothing. KEYS: tags. ARGV: burst, rate.
inline constexpr std::string_view kBucketsScript = R"(
local burst, rate = tonumber(ARGV[1]), tonumber(ARGV[2])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1e6
local tokens = {}
local allowed = 1
for i, key in ipairs(KEYS) do
  local bucket = redis.call('HMGET', key, 'tokens', 'time')
  local elapsed = math.max(0, now - (tonumber(bucket[2]) or now))
  tokens[i] = math.min(burst, (tonumber(bucket[1]) or burst) + elapsed * rate)
  if tokens[i] < 1 then allowed = 0 end
end
for i, key in ipairs(KEYS) do
  redis.call('HSET', key, 'tokens', tokens[i] - allowed, 'time', now)
  redis.call('EXPIRE', key, math.ceil(2 * burst / rate))
end
return allowed
)";

// The tags of a question are one, with these in front of it.
inline constexpr std::array kPrefixes{"", "a:", "b:", "c:", "d:"};

// One bulk string of the Redis protocol.
inline std::string Bulk(std::string_view text) {
  return fmt::format("${}\r\n{}\r\n", text.size(), text);
}

// The script that a protocol calls; empty: none.
inline std::string_view ScriptOf(std::string_view protocol) {
  return protocol == "redis-bucket" ? kBucketScript : protocol == "redis-buckets" ? kBucketsScript : "";
}

inline std::string LoadScriptCommand(std::string_view script) {
  return fmt::format("*3\r\n{}{}{}", Bulk("SCRIPT"), Bulk("LOAD"), Bulk(script));
}

inline Request Question(std::size_t tags) {
  Request question{{"take"}, JudgeQuestion};
  for (std::size_t i = 0; i < tags; ++i) {
    question.around.back() += fmt::format(" 1 {}", kPrefixes[i]);
    question.around.emplace_back();
  }
  question.around.back() = "\n";
  return question;
}

inline Request RedisBuckets(std::string_view script_name) {
  Request request{{fmt::format("*{}\r\n{}{}{}", 5 + kPrefixes.size(), Bulk("EVALSHA"), Bulk(script_name),
                               Bulk(std::to_string(kPrefixes.size())))},
                  JudgeRedisBucket};
  for (const std::string_view prefix : kPrefixes) {
    request.around.back() += fmt::format("${}\r\n{}", prefix.size() + kTagBytes, prefix);
    request.around.emplace_back("\r\n");
  }
  request.around.back() += Bulk(kBurstText) + Bulk(kRateText);
  return request;
}

// The protocol called `name`, if there is one. `script_name` is what Redis called the script when it was
// loaded.
inline std::optional<Protocol> MakeProtocol(std::string_view name, std::string_view script_name) {
  const std::string tag_size = fmt::format("${}\r\n", kTagBytes);
  if (name == "line") return Protocol{.ask = {{"", "\n"}, JudgeLine}, .create = {}};
  if (name == "question") return Protocol{.ask = Question(1), .create = {}};
  if (name == "question-5") return Protocol{.ask = Question(kPrefixes.size()), .create = {}};
  if (name == "redis-buckets") return Protocol{.ask = RedisBuckets(script_name), .create = {}};
  if (name == "redis-incr") {
    return Protocol{.ask = {{fmt::format("*2\r\n{}{}", Bulk("INCR"), tag_size), "\r\n"}, JudgeRedisCounter},
                    .create = {}};
  }
  if (name == "redis-bucket") {
    return Protocol{.ask = {{fmt::format("*6\r\n{}{}{}{}", Bulk("EVALSHA"), Bulk(script_name), Bulk("1"), tag_size),
                             fmt::format("\r\n{}{}", Bulk(kBurstText), Bulk(kRateText))},
                            JudgeRedisBucket},
                    .create = {}};
  }
  if (name == "memcached") {
    return Protocol{.ask = {{"incr ", " 1\r\n"}, JudgeMemcached},
                    .create = {{"add ", " 0 0 1\r\n1\r\n"}, JudgeMemcachedCreate}};
  }
  return std::nullopt;
}

}    // namespace dthrottle::bench
