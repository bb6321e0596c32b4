// Subjects of frames between hosts over NATS: PREFIX.ask.FROM.TO for what a host says to an owner, PREFIX.answer.FROM.TO
// for what goes back. The server's permissions bind a subject, and so FROM, to who may publish it (protocol/nats.md).
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "base/host_name.h"

namespace dthrottle {

// A token: dots separate tokens, and no name of a host has a tilde.
inline std::string NatsToken(std::string_view host) {
  std::string token(host);
  std::ranges::replace(token, '.', '~');
  return token;
}

struct NatsSubject {
  static constexpr std::string_view kAsk = "ask", kAnswer = "answer";

  std::string_view verb;    // kAsk or kAnswer
  std::string from;         // a host's name
};

inline std::string NatsSubjectOf(std::string_view prefix, std::string_view verb, std::string_view from,
                                 std::string_view to) {
  std::string subject(prefix);
  for (const std::string_view part : {verb, from, to}) subject.append(".").append(part);
  return subject;
}

// None: the subject is not of a frame to the host with the token `to`.
inline std::optional<NatsSubject> ParseNatsSubject(std::string_view prefix, std::string_view to, std::string_view subject) {
  const auto take = [&subject] {    // a token from the end
    const std::size_t dot = subject.rfind('.');
    const std::string_view token = dot == std::string_view::npos ? std::string_view() : subject.substr(dot + 1);
    subject = subject.substr(0, dot == std::string_view::npos ? 0 : dot);
    return token;
  };
  if (take() != to) return std::nullopt;
  const std::string_view from = take(), verb = take();
  if (subject != prefix || (verb != NatsSubject::kAsk && verb != NatsSubject::kAnswer)) return std::nullopt;
  NatsSubject read{verb == NatsSubject::kAsk ? NatsSubject::kAsk : NatsSubject::kAnswer, std::string(from)};
  std::ranges::replace(read.from, '~', '.');
  if (!IsHostName(read.from)) return std::nullopt;
  return read;
}

}    // namespace dthrottle
