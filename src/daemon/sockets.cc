#include "daemon/sockets.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "admin/snapshot.h"
#include "config/listeners.h"
#include "config/values.h"
#include "io/library_accept.h"

namespace dthrottle {

namespace {

constexpr std::string_view kQueries = "query";

int Opened(const SocketResult<int>& opened) {
  if (!opened) throw StartFailure{ExitCode(opened.error().code), opened.error().message};
  return *opened;
}

std::uint64_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return RLIM_INFINITY;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

// "dthrottled-admin.socket" as ".dthrottled.admin.socket."
std::string InWords(std::string_view name) {
  std::string words = fmt::format(".{}.", name);
  std::ranges::replace(words, '-', '.');
  return words;
}

std::string SocketKey(const FrontEnd& front, std::string_view kind) {
  return fmt::format("{}.{}", front.key(), kind);
}

}    // namespace

Sockets::Sockets(uv_loop_t* loop, const FrontEnds& front_ends, const Settings& settings, Log& log, Handover& handed)
    : loop_(loop), front_ends_(front_ends), settings_(settings), log_(log), handed_(handed) {}

// The words of the name that a unit gives its socket name a front end. Sockets of other names are for queries.
FrontEnd& Sockets::FrontOf(std::string_view name) const {
  const std::string words = InWords(name);
  const auto named = [&](const auto& front) { return words.find(InWords(front->key())) != words.npos; };
  auto found = std::ranges::find_if(front_ends_, named);
  if (found == front_ends_.end()) found = std::ranges::find(front_ends_, kQueries, &FrontEnd::key);
  return **found;
}

// These have no address in the settings.
void Sockets::TakePassed(const Service& service) {
  for (const Service::Socket& socket : service.TakeSockets()) {
    ::fcntl(socket.fd, F_SETFL, ::fcntl(socket.fd, F_GETFL) | O_NONBLOCK);
    ::fcntl(socket.fd, F_SETFD, FD_CLOEXEC);
    const bool is_tcp = DescribeSocket(socket.fd).starts_with("tcp:");
    const FrontEnd& front = FrontOf(socket.name);
    const std::string key = SocketKey(front, is_tcp ? "tcp" : "unix");
    const auto refuse = [&](std::string_view why) {
      throw StartFailure{EX_CONFIG, fmt::format("{}: {}", socket.name, why)};
    };
    if (key == "admin.tcp") refuse("commands are taken on Unix sockets only");
    const bool packets = EndpointsOf(settings_, front.key()).packets;
    if (!IsSocket(socket.fd, packets ? SOCK_SEQPACKET : SOCK_STREAM, true)) {
      refuse(fmt::format("is passed for {}, and is not a socket of {}= that listens", key,
                         packets ? "ListenSequentialPacket" : "ListenStream"));
    }
    handed_.listeners.push_back({socket.fd, key, ""});
  }
}

// A socket of the service manager has the place of its key, and takes it from one at the address in the settings. A
// Unix socket whose file was removed has none.
bool Sockets::HasPlace(const HandedListener& listener) const {
  const std::string &key = listener.key, &address = listener.address;
  const auto& all = handed_.listeners;
  const auto passed = [&](const HandedListener& l) { return l.key == key && l.address.empty(); };
  for (const auto& front : front_ends_) {
    const bool is_unix = key == SocketKey(*front, "unix");
    if (!is_unix && key != SocketKey(*front, "tcp")) continue;
    if (std::ranges::any_of(all, passed)) return address.empty();
    const Endpoints at = EndpointsOf(settings_, front->key());
    if (is_unix) return address == at.unix_path && ::access(address.c_str(), F_OK) == 0;
    return at.tcp.enabled() && address == FormatEndpoint(at.tcp);
  }
  return false;
}

void Sockets::CloseMoved() {
  std::vector<HandedListener> kept;
  for (const HandedListener& l : handed_.listeners) {
    if (HasPlace(l)) {
      kept.push_back(l);
      continue;
    }
    log_.Notice("no longer on {}, which was {}", l.address, l.key);
    if (l.address.starts_with('/')) ::unlink(l.address.c_str());
    ::close(l.fd);
  }
  handed_.listeners = std::move(kept);
}

// For Listen, as if they had been handed over. A socket that the service manager has passed takes the place of one.
void Sockets::OpenTcp() {
  for (const auto& front : front_ends_) {
    const std::string key = SocketKey(*front, "tcp");
    const Endpoint endpoint = EndpointsOf(settings_, front->key()).tcp;
    const auto& left = handed_.listeners;
    const bool passed = std::ranges::find(left, key, &HandedListener::key) != left.end();
    if (passed || !endpoint.enabled()) continue;
    handed_.listeners.push_back({Opened(dthrottle::ListenTcp(endpoint)), key, FormatEndpoint(endpoint)});
  }
}

void Sockets::Listen() {
  for (const auto& front : front_ends_) {
    std::set<std::string> passed;
    for (const std::string& key : {SocketKey(*front, "unix"), SocketKey(*front, "tcp")}) {
      for (int fd; (fd = TakeHanded(key, "")) >= 0; passed.insert(key)) ListenOn(fd, *front, key, "");
    }
    const Endpoints at = EndpointsOf(settings_, front->key());
    if (!passed.contains(SocketKey(*front, "unix"))) ListenUnix(*front, at);
    if (!passed.contains(SocketKey(*front, "tcp"))) ListenTcp(*front, at.tcp);
  }
}

void Sockets::ListenUnix(FrontEnd& front, const Endpoints& at) {
  const std::string& path = at.unix_path;
  if (path.empty()) return;
  const std::string key = SocketKey(front, "unix");
  int fd = TakeHanded(key, path);
  if (fd < 0) {
    fd = Opened(dthrottle::ListenUnix(path, at.unix_mode, at.packets));
  } else {
    ::chmod(path.c_str(), static_cast<mode_t>(at.unix_mode));
  }
  files_.push_back(path);
  ListenOn(fd, front, key, path);
}

void Sockets::ListenTcp(FrontEnd& front, const Endpoint& endpoint) {
  if (!endpoint.enabled()) return;
  const std::string key = SocketKey(front, "tcp"), address = FormatEndpoint(endpoint);
  const int fd = TakeHanded(key, address);
  ListenOn(fd >= 0 ? fd : Opened(dthrottle::ListenTcp(endpoint)), front, key, address);
}

// A listening socket that was left for this place, or -1.
int Sockets::TakeHanded(const std::string& key, const std::string& address) {
  auto& left = handed_.listeners;
  const auto found = std::ranges::find_if(left, [&](const auto& l) { return l.key == key && l.address == address; });
  if (found == left.end()) return -1;
  const int fd = found->fd;
  left.erase(found);
  return fd;
}

void Sockets::ListenOn(int fd, FrontEnd& front, const std::string& key, const std::string& address) {
  const std::string place = DescribeSocket(fd);
  log_.Say(LogLevel::kNotice, fmt::format("{} on {}", front.doing(), place));
  const auto failed = [this, place](int code) {
    ++accept_failures_;
    log_.Warning("{}: cannot accept a connection: {}", place, std::strerror(code));
  };
  Place& added = listening_.emplace_back(Place{key, address, &front, nullptr});
  added.listener = std::make_unique<Listener>(
      loop_, fd, BoundsOf(added), [this, &front](int accepted) { OnConnection(front, accepted); }, failed,
      [this, place, &front](int came, Places::Answer answer) { return OnCrowd(front, place, came, answer); });
}

// ---- Places ----

void Sockets::DividePlaces() {
  const std::uint64_t limit = RaiseDescriptorLimit();
  if (listening_.empty()) {
    const std::uint64_t open = OpenDescriptors();
    descriptors_at_start_ = open - std::min<std::uint64_t>(handed_.connections.size(), open);
  }
  ceilings_ = DivideDescriptors(front_ends_, settings_, limit, descriptors_at_start_);
  if (!ceilings_.cut.empty()) {
    log_.Warning(
        "the limit of open files, {}, is too low for all connections that the settings allow: {}; raise LimitNOFILE",
        limit, fmt::join(ceilings_.cut, ", "));
  }
  for (const Place& l : listening_) l.listener->places().set_bounds(BoundsOf(l));
  BoundLibraryAccepts({ceilings_.peers, PlacesPerSource(ceilings_.peers, settings_.process.source_share)});
}

PlaceBounds Sockets::BoundsOf(const Place& listening) const {
  const Ceilings::Room& room = ceilings_.Of(*listening.front);
  const bool apart = room.unix_socket > 0 && listening.key.ends_with(".unix");
  const std::uint32_t total = apart ? room.unix_socket : room.all;
  return {total, PlacesPerSource(total, settings_.process.source_share)};
}

// Each socket has its bound, and front ends that share room have one together.
void Sockets::OnConnection(FrontEnd& front, int fd) {
  const Ceilings::Room& room = ceilings_.Of(front);
  std::size_t open = 0;
  for (const FrontEnd* other : Listening()) {
    if (Ceilings::Owner(*other) == Ceilings::Owner(front)) open += other->connections();
  }
  if (open < std::size_t{room.all} + room.unix_socket) return front.Take(fd);
  front.CountRejected();
  log_.Warning("{}: all {} connections are open: one more turned away", front.key(), open);
  ::close(fd);
}

// A source makes room by itself first.
bool Sockets::OnCrowd(FrontEnd& front, const std::string& place, int fd, Places::Answer answer) {
  const bool source_full = answer == Places::Answer::kSourceFull;
  if (front.MakeRoom([&](int other) { return Places::SameSource(other, fd); }) ||
      (!source_full && front.MakeRoom([](int) { return true; }))) {
    log_.Notice("{}: the connection that was idle longest is closed for another one", place);
    return true;
  }
  if (source_full) {
    ++crowded_;
    log_.Warning("{}: one source has its part of the connections (process.source_share = {:g}): one more turned away",
                 place, settings_.process.source_share);
    return false;
  }
  front.CountRejected();
  log_.Warning("{}: all places are taken: one more turned away", place);
  return false;
}

void Sockets::KeepPlace(const HandedConnection& connection) {
  for (const Place& l : listening_) {
    if (l.front->key() != connection.front || !CameBy(connection.fd, l.listener->fd())) continue;
    return l.listener->places().Keep(connection.fd);
  }
}

// ---- The rest ----

std::vector<FrontEnd*> Sockets::Listening() const {
  std::vector<FrontEnd*> listening;
  const auto add = [&](FrontEnd* front) {
    if (std::ranges::find(listening, front) == listening.end()) listening.push_back(front);
  };
  for (const Place& l : listening_) {
    if (l.front->rests_on() != nullptr) add(l.front->rests_on());
    add(l.front);
  }
  return listening;
}

std::string Sockets::AddressOf(std::string_view key) const {
  const auto found = std::ranges::find(listening_, key, &Place::key);
  return found != listening_.end() ? DescribeSocket(found->listener->fd()) : "";
}

std::string Sockets::Status() const {
  std::vector<std::string> places;
  for (const Place& l : listening_) {
    if (l.front->key() == kQueries) places.push_back(DescribeSocket(l.listener->fd()));
  }
  return fmt::format("Answering on {}", fmt::join(places, ", "));
}

std::vector<HandedListener> Sockets::Handed() const {
  std::vector<HandedListener> all;
  for (const Place& l : listening_) all.push_back({l.listener->fd(), l.key, l.address});
  return all;
}

void Sockets::Count(ProcessCounts& counts) const {
  counts.accept_failures = accept_failures_;
  counts.crowded = crowded_;
  counts.strangers = LibraryAcceptsRefused();
}

void Sockets::AcceptAll() {
  for (const Place& l : listening_) l.listener->AcceptAll();
}

void Sockets::Close() {
  listening_.clear();
  for (const std::string& path : std::exchange(files_, {})) ::unlink(path.c_str());
}

}    // namespace dthrottle
