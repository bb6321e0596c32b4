#include "frontend/resp/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>

#include "base/number.h"
#include "frontend/resp/writer.h"
#include "rule/glob.h"

namespace dthrottle {

namespace {

// What clients are told that they talk to. Some look at the version before they use a command.
constexpr std::string_view kRedisVersion = "7.0.15";

char Lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = Lower(c);
  return out;
}

struct Call {
  RespClient& client;
  RespArguments arguments;
  const std::function<RespStatus()>& status;
  std::string& out;

  RespWriter reply() const { return RespWriter(out, client.protocol); }
  std::string_view operator[](std::size_t i) const { return arguments[i]; }
  std::size_t size() const { return arguments.size(); }
};

struct Command {
  std::string_view name;
  int arity;    // as in Redis, with the name: that many, or at least -arity
  void (*run)(const Call&);
  bool at_once = false;    // also between MULTI and EXEC
};

void WrongArity(const Call& call, std::string_view name) {
  call.reply().Error(fmt::format("ERR wrong number of arguments for '{}' command", name));
}

bool Fits(std::size_t arguments, int arity) {
  return arity >= 0 ? arguments == static_cast<std::size_t>(arity) : arguments >= static_cast<std::size_t>(-arity);
}

// Runs the command that the second word names.
void RunSubcommand(const Call& call, std::span<const Command> subcommands) {
  const std::string name = Lower(call[0]);
  for (const Command& sub : subcommands) {
    if (!SameWord(sub.name, call[1])) continue;
    if (!Fits(call.size(), sub.arity)) return WrongArity(call, fmt::format("{}|{}", name, sub.name));
    return sub.run(call);
  }
  std::string upper = name;
  for (char& c : upper) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  call.reply().Error(
      fmt::format("ERR unknown subcommand '{}'. Try {} HELP.", call[1].substr(0, kRespQuotedBytesMax), upper));
}

void SayOk(const Call& call) {
  call.reply().Ok();
}

// ---- Getting acquainted ----

// No password is set, so the only user there is, "default", comes in with any.
bool Authenticate(const Call& call, std::string_view user) {
  if (user == "default") return true;
  call.reply().Error("WRONGPASS invalid username-password pair or user is disabled.");
  return false;
}

void Auth(const Call& call) {
  if (call.size() > 3) return call.reply().Error("ERR syntax error");
  if (call.size() == 2) {
    return call.reply().Error(
        "ERR AUTH <password> called without any password configured for the default user. Are you sure your "
        "configuration is correct?");
  }
  if (Authenticate(call, call[1])) call.reply().Ok();
}

bool SetName(const Call& call, std::string_view name) {
  if (std::ranges::any_of(name, [](char c) { return c < '!' || c > '~'; })) {
    call.reply().Error("ERR Client names cannot contain spaces, newlines or special characters.");
    return false;
  }
  if (name.size() > kRespNameBytesMax) {
    call.reply().Error(fmt::format("ERR Client names are at most {} bytes", kRespNameBytesMax));
    return false;
  }
  call.client.name = name;
  return true;
}

void Hello(const Call& call) {
  int protocol = call.client.protocol;
  if (call.size() > 1) {
    if (!ParseNumber(call[1], protocol)) {
      return call.reply().Error("ERR Protocol version is not an integer or out of range");
    }
    if (protocol != 2 && protocol != 3) return call.reply().Error("NOPROTO unsupported protocol version");
  }
  for (std::size_t i = 2; i < call.size(); ++i) {
    const std::size_t more = call.size() - i - 1;
    if (SameWord(call[i], "auth") && more >= 2) {
      if (!Authenticate(call, call[i + 1])) return;
      i += 2;
    } else if (SameWord(call[i], "setname") && more >= 1) {
      if (!SetName(call, call[++i])) return;
    } else {
      return call.reply().Error(
          fmt::format("ERR Syntax error in HELLO option '{}'", call[i].substr(0, kRespQuotedBytesMax)));
    }
  }
  call.client.protocol = protocol;
  RespWriter reply = call.reply();
  reply.Map(7);
  reply.Bulk("server");
  reply.Bulk("redis");
  reply.Bulk("version");
  reply.Bulk(kRedisVersion);
  reply.Bulk("proto");
  reply.Integer(protocol);
  reply.Bulk("id");
  reply.Integer(static_cast<std::int64_t>(call.client.id));
  reply.Bulk("mode");
  reply.Bulk("standalone");
  reply.Bulk("role");
  reply.Bulk("master");
  reply.Bulk("modules");
  reply.Array(0);
}

void Reset(const Call& call) {
  call.client.protocol = 2;
  call.client.name.clear();
  call.client.transaction = {};
  call.reply().Simple("RESET");
}

void Quit(const Call& call) {
  call.client.leaving = true;
  call.reply().Ok();
}

// ---- Small talk ----

void Ping(const Call& call) {
  if (call.size() > 2) return WrongArity(call, "ping");
  if (call.size() == 2) return call.reply().Bulk(call[1]);
  call.reply().Simple("PONG");
}

void Echo(const Call& call) {
  call.reply().Bulk(call[1]);
}

void Select(const Call& call) {
  int index = 0;
  if (!ParseNumber(call[1], index)) return call.reply().Error("ERR value is not an integer or out of range");
  if (index != 0) return call.reply().Error("ERR DB index is out of range");
  call.reply().Ok();
}

std::string Describe(const RespClient& client) {
  return fmt::format("id={} name={} db=0 resp={}\n", client.id, client.name, client.protocol);
}

void ClientCommand(const Call& call) {
  static constexpr Command kSubcommands[] = {
      {"getname", 2,
       [](const Call& c) {
         if (c.client.name.empty()) return c.reply().Null();
         c.reply().Bulk(c.client.name);
       }},
      {"id", 2, [](const Call& c) { c.reply().Integer(static_cast<std::int64_t>(c.client.id)); }},
      {"info", 2, [](const Call& c) { c.reply().Verbatim(Describe(c.client)); }},
      {"list", -2, [](const Call& c) { c.reply().Verbatim(Describe(c.client)); }},    // nobody sees the others
      {"maint_notifications", -3, SayOk},                                             // there never are any
      {"no-evict", 3, SayOk},
      {"no-touch", 3, SayOk},
      {"setinfo", 4, SayOk},
      {"setname", 3,
       [](const Call& c) {
         if (SetName(c, c[2])) c.reply().Ok();
       }},
      {"tracking", -3,
       [](const Call& c) {
         if (SameWord(c[2], "off")) return c.reply().Ok();
         c.reply().Error("ERR there are no keys to track");
       }},
  };
  RunSubcommand(call, kSubcommands);
}

// ---- Transactions; RespTurn runs EXEC ----

void Multi(const Call& call) {
  if (call.client.transaction.open) return call.reply().Error("ERR MULTI calls can not be nested");
  call.client.transaction.open = true;
  call.reply().Ok();
}

void Discard(const Call& call) {
  if (!call.client.transaction.open) return call.reply().Error("ERR DISCARD without MULTI");
  call.client.transaction = {};
  call.reply().Ok();
}

// Nobody changes a key that a client could watch, so every transaction finds the watched keys as they were.
void WatchKeys(const Call& call) {
  if (call.client.transaction.open) return call.reply().Error("ERR WATCH inside MULTI is not allowed");
  call.reply().Ok();
}

// ---- What the server is ----

void Config(const Call& call) {
  static constexpr Command kSubcommands[] = {
      {"get", -3,
       [](const Call& c) {
         // redis-benchmark and some clients ask for these before they begin.
         static constexpr std::pair<std::string_view, std::string_view> kValues[] = {
             {"appendonly", "no"}, {"databases", "1"}, {"maxmemory", "0"}, {"save", ""}};
         const auto wanted = [&](std::string_view name) {
           return std::any_of(c.arguments.begin() + 2, c.arguments.end(), [&](std::string_view pattern) {
             const auto glob = Glob::Compile(Lower(pattern));
             return glob && glob->Matches(name);
           });
         };
         RespWriter reply = c.reply();
         reply.Map(static_cast<std::size_t>(std::ranges::count_if(kValues, wanted, [](const auto& v) { return v.first; })));
         for (const auto& [name, value] : kValues) {
           if (!wanted(name)) continue;
           reply.Bulk(name);
           reply.Bulk(value);
         }
       }},
  };
  RunSubcommand(call, kSubcommands);
}

void Info(const Call& call) {
  const RespStatus s = call.status();
  const std::pair<std::string_view, std::string> sections[] = {
      {"Server",
       fmt::format("redis_version:{}\r\nredis_mode:standalone\r\ndthrottle_version:{}\r\nuptime_in_seconds:{}\r\n",
                   kRedisVersion, DTHROTTLE_VERSION, static_cast<std::int64_t>(Seconds(s.uptime)))},
      {"Clients", fmt::format("connected_clients:{}\r\nblocked_clients:0\r\n", s.connections)},
      {"Memory", fmt::format("used_memory:{}\r\nmaxmemory:0\r\n", s.memory)},
      {"Persistence", "loading:0\r\nasync_loading:0\r\nrdb_bgsave_in_progress:0\r\naof_enabled:0\r\n"},
      {"Stats",
       fmt::format("total_connections_received:{}\r\ntotal_commands_processed:{}\r\n", s.accepted, s.commands)},
      {"Replication", "role:master\r\nconnected_slaves:0\r\n"},
      {"Cluster", "cluster_enabled:0\r\n"},
      {"Keyspace", ""},
  };
  const auto wanted = [&](std::string_view section) {
    return call.size() == 1 ||
           std::any_of(call.arguments.begin() + 1, call.arguments.end(), [&](std::string_view word) {
             return SameWord(word, section) || SameWord(word, "all") || SameWord(word, "default") ||
                    SameWord(word, "everything");
           });
  };
  std::string text;
  for (const auto& [name, lines] : sections) {
    if (wanted(name)) text += fmt::format("{}# {}\r\n{}", text.empty() ? "" : "\r\n", name, lines);
  }
  call.reply().Verbatim(text);
}

void CommandCommand(const Call& call);

constexpr Command kCommands[] = {
    {"auth", -2, Auth},
    {kRespThrottle, -1, nullptr},    // RespTurn runs it
    {"client", -2, ClientCommand},
    {"command", -1, CommandCommand},
    {"config", -2, Config},
    {"discard", 1, Discard, true},
    {kRespPeek, -3, nullptr},    // RespTurn runs them
    {kRespTake, -3, nullptr},
    {"echo", 2, Echo},
    {"exec", 1, nullptr, true},    // RespTurn runs it
    {"hello", -1, Hello},
    {"info", -1, Info},
    {"multi", 1, Multi, true},
    {"ping", -1, Ping},
    {"quit", -1, Quit, true},
    {"reset", 1, Reset, true},
    {"select", 2, Select},
    {"unwatch", 1, SayOk},
    {"watch", -2, WatchKeys, true},
};

const Command* Find(std::string_view name) {
  const auto* found = std::ranges::find_if(kCommands, [&](const auto& its) { return SameWord(its.name, name); });
  return found == std::end(kCommands) ? nullptr : found;
}

// What COMMAND says of one: name, arity, flags, first and last key and the step between, categories, tips, key
// specifications, subcommands.
void Describe(RespWriter& reply, const Command& command) {
  const bool has_key = command.name == kRespThrottle, has_keys = command.name == kRespTake || command.name == kRespPeek;
  reply.Array(10);
  reply.Bulk(command.name);
  reply.Integer(command.arity);
  reply.Array(1);
  reply.Simple("fast");
  reply.Integer(has_key || has_keys);
  reply.Integer(has_keys ? -1 : has_key);
  reply.Integer(has_keys ? 2 : has_key);
  for (int i = 0; i < 4; ++i) reply.Array(0);
}

void CommandCommand(const Call& call) {
  static constexpr Command kSubcommands[] = {
      {"count", 2, [](const Call& c) { c.reply().Integer(std::size(kCommands)); }},
      {"docs", -2, [](const Call& c) { c.reply().Map(0); }},
      {"info", -2,
       [](const Call& c) {
         RespWriter reply = c.reply();
         reply.Array(c.size() == 2 ? std::size(kCommands) : c.size() - 2);
         for (const std::string_view name : c.arguments.subspan(2)) {
           const Command* command = Find(name);
           command != nullptr ? Describe(reply, *command) : reply.Null();
         }
         if (c.size() > 2) return;
         for (const Command& command : kCommands) Describe(reply, command);
       }},
      {"list", 2,
       [](const Call& c) {
         RespWriter reply = c.reply();
         reply.Array(std::size(kCommands));
         for (const Command& command : kCommands) reply.Bulk(command.name);
       }},
  };
  if (call.size() > 1) return RunSubcommand(call, kSubcommands);
  RespWriter reply = call.reply();
  reply.Array(std::size(kCommands));
  for (const Command& command : kCommands) Describe(reply, command);
}

void Unknown(const Call& call) {
  std::string beginning;
  for (const std::string_view argument : call.arguments.subspan(1)) {
    if (beginning.size() >= kRespQuotedBytesMax) break;
    beginning += fmt::format("'{}' ", argument.substr(0, kRespQuotedBytesMax - beginning.size()));
  }
  call.reply().Error(fmt::format("ERR unknown command '{}', with args beginning with: {}",
                                 call[0].substr(0, kRespQuotedBytesMax), beginning));
}

}    // namespace

// Five numbers with a blank behind each (id, protocol, what is known of the transaction, its commands, bytes of the
// name), the name, and the transaction's commands. A connection that is leaving is not read again, so that is not said.
std::string SaveRespClient(const RespClient& client) {
  const RespTransaction& t = client.transaction;
  const int transaction = t.open ? (t.broken ? 2 : 1) : 0;
  return fmt::format("{} {} {} {} {} {}{}", client.id, client.protocol, transaction, t.commands, client.name.size(),
                     client.name, t.bytes);
}

Result<RespClient> LoadRespClient(std::string_view bytes) {
  std::array<std::uint64_t, 5> numbers{};
  for (std::uint64_t& number : numbers) {
    const char* const end = bytes.data() + bytes.size();
    const auto [at, error] = std::from_chars(bytes.data(), end, number);
    if (error != std::errc() || at == end || *at != ' ') return Fail("it is no client of RESP");
    bytes.remove_prefix(static_cast<std::size_t>(at - bytes.data()) + 1);
  }
  const auto& [id, protocol, transaction, commands, name_bytes] = numbers;
  const bool good = (protocol == 2 || protocol == 3) && transaction <= 2 && name_bytes <= kRespNameBytesMax &&
                    name_bytes <= bytes.size() && bytes.size() - name_bytes <= RespTransaction::kBytesMax;
  if (!good) return Fail("it is no client of RESP");
  RespClient client;
  client.id = id;
  client.protocol = static_cast<int>(protocol);
  client.name = bytes.substr(0, name_bytes);
  client.transaction = {transaction != 0, transaction == 2, commands, std::string(bytes.substr(name_bytes))};

  struct CommandCount {
    std::size_t commands = 0;
    bool OnCommand(RespArguments) { return ++commands > 0; }
  } count;
  RespReader reader;
  const bool whole = reader.Read(client.transaction.bytes, count).has_value() && reader.rest().empty();
  if (!whole || count.commands != commands || (commands > 0 && transaction == 0)) {
    return Fail("its transaction is malformed");
  }
  return client;
}

bool SameWord(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) { return Lower(x) == Lower(y); });
}

void AppendError(std::string& out, std::string_view text) {
  out += '-';
  for (const char c : text) out += c == '\r' || c == '\n' ? ' ' : c;
  out += "\r\n";
}

bool IsOfBrowser(RespArguments arguments) {
  return SameWord(arguments[0], "post") || SameWord(arguments[0], "host:");
}

bool QueueRespCommand(RespClient& client, RespArguments arguments, std::string& out) {
  const Call call{client, arguments, {}, out};
  const Command* command = Find(arguments[0]);
  const bool fits = command != nullptr && Fits(arguments.size(), command->arity);
  if (fits && command->at_once) return false;
  if (fits && client.transaction.Keep(arguments)) {
    call.reply().Simple("QUEUED");
    return true;
  }
  client.transaction.broken = true;
  if (command == nullptr) {
    Unknown(call);
  } else if (!fits) {
    WrongArity(call, command->name);
  } else {
    call.reply().Error(fmt::format("ERR a transaction has at most {} bytes, and {} a command",
                                   RespTransaction::kBytesMax, kRespCommandBytesMax));
  }
  return true;
}

void RunRespCommand(RespClient& client, RespArguments arguments, const std::function<RespStatus()>& status,
                    std::string& out) {
  const Call call{client, arguments, status, out};
  const Command* command = Find(call[0]);
  if (command == nullptr || command->run == nullptr) return Unknown(call);
  if (!Fits(call.size(), command->arity)) return WrongArity(call, command->name);
  command->run(call);
}

}    // namespace dthrottle
