#include "daemon/takeover.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>

#include "base/words.h"
#include "bucket/table.h"
#include "config/listeners.h"
#include "config/values.h"
#include "daemon/counting.h"
#include "daemon/holding.h"
#include "daemon/kept_rules.h"
#include "hold/hold_table.h"
#include "io/files.h"
#include "io/listener.h"

namespace dthrottle {

namespace {

constexpr std::string_view kListensVariable = "DTHROTTLED_LISTENS";
constexpr std::string_view kByLibrary[] = {"peers", "sites"};    // listeners that are none of a front end

// A socket of the running daemon: "KEY=ADDRESS=BOUND", with the address of the settings, as a word, and that of a TCP
// socket, which has a port where the settings have 0. Without an address the service manager has passed it.
struct Held {
  std::string_view key, address, bound;
};

// A path may have blanks.
std::string AsWord(std::string_view address) {
  std::string word;
  for (const char c : address) {
    const auto byte = static_cast<unsigned char>(c);
    word += byte > ' ' && c != '%' && c != '=' ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return word;
}

// None: the program that asks does not say.
std::optional<std::vector<Held>> HeldNow() {
  const char* const text = std::getenv(std::string(kListensVariable).c_str());
  if (text == nullptr) return std::nullopt;
  std::vector<Held> held;
  std::string_view rest = text, word;
  while (!(word = NextWord(rest)).empty()) {
    const auto next = [&word] {
      const std::string_view part = word.substr(0, word.find('='));
      word.remove_prefix(std::min(part.size() + 1, word.size()));
      return part;
    };
    const std::string_view key = next(), address = next();
    held.push_back({key, address, word});
  }
  return held;
}

void Add(LoadedSettings& loaded, std::string_view key, std::string_view why) {
  const std::size_t dot = key.find('.');
  loaded.problems.push_back(loaded.ErrorAt(key.substr(0, dot), key.substr(dot + 1), why));
}

// The file of the table and those beside it, where their folder is there, and that of quotas. Together they need room.
void FindRegions(LoadedSettings& loaded) {
  const Settings& s = loaded.settings;
  const std::string& table = s.table.file;
  RoomLeft left;
  const auto look = [&](std::string_view memory_key, const std::string& path, std::size_t bytes, IsOurs is_ours) {
    const auto usable = MappedRegion::Check(path, bytes, is_ours, left);
    if (usable) return;
    Add(loaded, usable.error().code == ENOSPC ? memory_key : "table.file", usable.error().message);
  };
  if (!table.empty() && ::access(table.substr(0, table.rfind('/') + 1).c_str(), F_OK) == 0) {
    look("table.memory", table, s.table.memory, Table::IsTable);
    if (const auto rules = KeptRules(table).Read(); !rules) Add(loaded, "table.file", rules.error().message);
    if (s.resp.enabled() && s.resp.accept_limits) look("resp.memory", table + ".resp", s.resp.memory, Table::IsTable);
    if (Holding::IsWanted(s)) {
      const std::size_t bytes = HoldTable::RegionBytes(s.hold.max_holds);
      look("hold.max_holds", Holding::PathOf(s), bytes, HoldTable::IsHoldTable);
    }
  }
  if (const auto problem = WhyNoQuotaFile(loaded, &left)) loaded.problems.push_back(*problem);
}

bool IsHeld(const std::optional<std::vector<Held>>& held, std::string_view key, std::string_view address) {
  return held.has_value() &&
         std::ranges::any_of(*held, [&](const Held& h) { return h.key == key && h.address == address; });
}

// By the service manager.
bool IsPassed(const std::optional<std::vector<Held>>& held, std::string_view key) {
  return IsHeld(held, key, "");
}

// A plain check passes over them: it may be for another host, or come before the first start. A Unix socket that does not
// go over, as one whose file was removed, is made anew; a program that does not say which it has may have any.
void FindMissingDirectories(LoadedSettings& loaded, const std::optional<std::vector<Held>>& held) {
  std::set<std::string> missing;
  const auto look = [&](std::string_view key, const std::string& path, int mode) {
    const std::string directory = path.substr(0, path.rfind('/') + 1);
    if (path.empty() || ::access(directory.c_str(), mode) == 0) return;
    const std::string why = fmt::format("{}: {}", directory, std::strerror(errno));
    if (missing.insert(directory).second) Add(loaded, key, why);
  };
  look("table.file", loaded.settings.table.file, F_OK);
  for (const ListenerKeys& its : AllListeners()) {
    const std::string path = its.at(loaded.settings).unix_path, key = fmt::format("{}.unix", its.name);
    const bool goes_over = IsHeld(held, key, AsWord(path)) && ::access(path.c_str(), F_OK) == 0;
    const bool is_made = held.has_value() && !goes_over && !IsPassed(held, key);
    look(its.unix_key, path, is_made ? W_OK | X_OK : F_OK);
  }
}

void FindOtherFiles(LoadedSettings& loaded, const std::optional<std::vector<Held>>& held) {
  for (const ListenerKeys& its : AllListeners()) {
    const std::string path = its.at(loaded.settings).unix_path;
    struct stat status {};
    if (path.empty() || IsPassed(held, fmt::format("{}.unix", its.name))) continue;
    if (::lstat(path.c_str(), &status) != 0 || S_ISSOCK(status.st_mode)) continue;
    Add(loaded, its.unix_key, path + ": is there and is not a socket");
  }
}

// Whether a socket could not be bound for a reason that the end of the running daemon does not take away. Its own ports
// are in use until then, and one that says nothing of them may have those below 1024 that this user cannot open again.
bool IsFinal(int code, const Endpoint& tcp, const std::optional<std::vector<Held>>& held) {
  if (code != EADDRINUSE) return held.has_value() || (code != EACCES && code != EPERM);
  const std::string port = fmt::format(":{}", tcp.port);
  return held.has_value() &&
         std::ranges::none_of(*held, [&](const Held& h) { return !h.address.empty() && h.bound.ends_with(port); });
}

// Peers and sites try again after an upgrade until they can listen.
void FindTakenPorts(LoadedSettings& loaded, const std::optional<std::vector<Held>>& held) {
  for (const ListenerKeys& its : AllListeners()) {
    if (std::ranges::find(kByLibrary, its.name) != std::end(kByLibrary)) continue;
    const Endpoint tcp = its.at(loaded.settings).tcp;
    const std::string key = fmt::format("{}.tcp", its.name), address = FormatEndpoint(tcp);
    if (!tcp.enabled() || IsHeld(held, key, address) || IsPassed(held, key)) continue;
    const auto bound = TryTcp(tcp);
    if (!bound && IsFinal(bound.error().code, tcp, held)) Add(loaded, its.tcp_key, bound.error().message);
  }
}

}    // namespace

std::string ListensVariable(const std::vector<HandedListener>& listening, const Settings& settings) {
  std::string variable = fmt::format("{}=", kListensVariable);
  for (const HandedListener& l : listening) {
    const std::string bound = l.key.ends_with(".tcp") ? DescribeSocket(l.fd) : "";
    variable += fmt::format("{}={}={} ", l.key, AsWord(l.address), bound);
  }
  for (const std::string_view name : kByLibrary) {
    const Endpoint tcp = EndpointsOf(settings, name).tcp;
    if (tcp.enabled()) variable += fmt::format("{0}.tcp={1}={1} ", name, FormatEndpoint(tcp));
  }
  return variable;
}

void FindTroubleOfTakeover(LoadedSettings& loaded) {
  const std::optional<std::vector<Held>> held = HeldNow();
  FindMissingDirectories(loaded, held);
  FindRegions(loaded);
  FindOtherFiles(loaded, held);
  FindTakenPorts(loaded, held);
}

}    // namespace dthrottle
