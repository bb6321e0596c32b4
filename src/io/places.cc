#include "io/places.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace dthrottle {

namespace {

constexpr std::uint32_t kPerSourceMin = 16;
constexpr std::size_t kSweptAlways = 4;
constexpr std::size_t kSweptWhenFull = 64;
constexpr Duration kRoundEvery = std::chrono::milliseconds(500);    // 16,384 places take some 5 ms

// 0: this is no socket.
std::uint64_t CookieOf(int fd) {
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  return ::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

}    // namespace

std::uint32_t PlacesPerSource(std::uint32_t total, double part) {
  const auto share = static_cast<std::uint32_t>(static_cast<double>(total) * part);
  return std::min(total, std::max(share, kPerSourceMin));
}

std::vector<std::uint32_t> DividePlaces(std::uint64_t available, const std::vector<PlacesWanted>& wanted) {
  std::vector<std::uint32_t> given(wanted.size(), 0);
  std::vector<bool> settled(wanted.size(), false);
  for (bool again = true; again;) {    // each turn settles one at least
    again = false;
    std::uint64_t weight = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) weight += settled[i] ? 0 : wanted[i].weight;
    const std::uint64_t left = available;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (settled[i] || wanted[i].want * weight > left * wanted[i].weight) continue;
      given[i] = wanted[i].want;
      available -= std::min<std::uint64_t>(available, given[i]);
      settled[i] = again = true;
    }
    if (again) continue;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (!settled[i]) given[i] = static_cast<std::uint32_t>(left * wanted[i].weight / weight);
    }
  }
  return given;
}

Places::Source Places::SourceOf(int fd) {
  Source source{};
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return source;
  source[0] = static_cast<std::uint8_t>(peer.ss_family);
  if (peer.ss_family == AF_INET) {
    std::memcpy(&source[1], &reinterpret_cast<const sockaddr_in&>(peer).sin_addr, sizeof(in_addr));
  } else if (peer.ss_family == AF_INET6) {
    constexpr std::size_t kNetworkBytes = 8;
    std::memcpy(&source[1], &reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr, kNetworkBytes);
  } else if (peer.ss_family == AF_UNIX) {
    ucred user{};
    size = sizeof user;
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &size) == 0) {
      std::memcpy(&source[1], &user.uid, sizeof user.uid);
    }
  }
  return source;
}

Places::Answer Places::Take(int fd, Instant now) {
  const Source source = SourceOf(fd);
  const auto answer = [&] {
    const auto held = by_source_.find(source);
    const bool source_full = held != by_source_.end() && held->second >= bounds_.per_source;
    return entries_.size() >= bounds_.total ? Answer::kFull : source_full ? Answer::kSourceFull : Answer::kTaken;
  };
  Sweep(kSweptAlways);
  if (answer() != Answer::kTaken) Sweep(kSweptWhenFull);
  if (answer() != Answer::kTaken && now >= next_round_) {
    next_round_ = now + kRoundEvery;
    Sweep(entries_.size());
  }
  const Answer given = answer();
  if (given == Answer::kTaken) Add(fd, source);
  return given;
}

void Places::Keep(int fd) {
  Add(fd, SourceOf(fd));
}

void Places::Add(int fd, const Source& source) {
  entries_.push_back({fd, CookieOf(fd), source});
  ++by_source_[source];
}

void Places::Sweep(std::size_t entries) {
  for (std::size_t i = std::min(entries, entries_.size()); i > 0 && !entries_.empty(); --i) {
    if (next_ >= entries_.size()) next_ = 0;
    Entry& entry = entries_[next_];
    if (CookieOf(entry.fd) == entry.cookie && entry.cookie != 0) {
      ++next_;
      continue;
    }
    const auto count = by_source_.find(entry.source);
    if (--count->second == 0) by_source_.erase(count);
    entry = entries_.back();
    entries_.pop_back();
  }
}

}    // namespace dthrottle
