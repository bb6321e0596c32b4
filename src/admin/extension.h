// What a part of the daemon adds to commands and HTTP, for parts that not every daemon has.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "base/time.h"
#include "bucket/bucket.h"

namespace dthrottle {

class Extension {
 public:
  using Json = nlohmann::ordered_json;

  struct Command {
    std::string_view name, argument, meaning;    // as in `help`
  };

  virtual Command command() const = 0;

  // Whether the command changes anything with that argument, for the audit.
  virtual bool Changes(std::string_view argument) const = 0;

  // What the audit says of the command with that argument, after its name.
  virtual std::string Audited(std::string_view argument) const { return std::string(argument); }

  // Runs it and calls `reply` once, perhaps later. An error is {"error": why}.
  virtual void Run(std::string_view argument, std::function<void(Json)> reply, Instant now) = 0;

  // Sentences for `why` about a tag and the limit that it has.
  virtual void Why(std::string_view /*tag*/, LimitIndex /*limit*/,
                   const std::function<void(std::string)>& /*say*/) const {}

  // What a program has posted to /COMMAND over HTTP.
  struct Posted {
    std::string_view authorization;    // the header field; empty: none
    // A parameter; null: it is not there.
    std::function<const std::string*(std::string_view name)> parameter;
  };
  struct Answer {
    unsigned status;
    Json body;    // a text says what is wrong
  };
  // The parameters that a post may have, each once; a post with another one is refused unseen.
  virtual std::span<const std::string_view> parameters() const { return {}; }
  virtual Answer Post(const Posted&) { return {404, "nothing is posted here"}; }

 protected:
  ~Extension() = default;
};

}    // namespace dthrottle
