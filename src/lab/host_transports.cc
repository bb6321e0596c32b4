#include "lab/host_transports.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/number.h"

namespace dthrottle::lab {

namespace {

constexpr std::string_view kHostStem = "host-";

std::uint32_t NumberIn(std::string_view digits) {
  std::uint32_t number = 0;
  DT_CHECK(ParseNumber(digits, number));
  return number;
}

}    // namespace

std::string HostName(std::uint32_t number) {
  return std::string(kHostStem) + std::to_string(number);
}

std::uint32_t HostNumber(std::string_view name) {
  return NumberIn(name.substr(kHostStem.size()));
}

Route HostTransports::RouteTo(std::uint32_t host) {
  return fmt::format("{:06}", host);
}

bool HostTransports::Publish(const Route& route, const Frame& frame) {
  if (frame != published_) {
    auto decoded = std::make_shared<Decoded>();
    decoded->fault = codec_->Decode(*frame, decoded->message);
    published_ = frame;
    decoded_ = std::move(decoded);
  }
  surroundings_.Send({Channel::kPublished, host_, NumberIn(route), 0, frame, decoded_});
  return true;
}

void HostTransports::Ask(LinkId link, const Frame& frame) {
  surroundings_.Send({Channel::kRequest, host_, link, 0, frame});
}

void HostTransports::Answer(const Route& route, const Frame& frame) {
  surroundings_.Send({Channel::kAnswer, host_, NumberIn(route), 0, frame});
}

void HostTransports::Send(std::string_view peer, std::string_view frame) {
  surroundings_.Send({Channel::kCapacity, host_, HostNumber(peer), 0, std::make_shared<const std::string>(frame)});
}

}    // namespace dthrottle::lab
