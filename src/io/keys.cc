#include "io/keys.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sodium/utils.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/check.h"
#include "base/host_name.h"
#include "base/words.h"
#include "config/values.h"
#include "io/files.h"

namespace dthrottle {

namespace {

constexpr std::size_t kKeyBytesMax = 4096;
constexpr std::size_t kAuthorizedMax = 10'000;

bool IsKey(std::string_view text) {
  std::uint8_t raw[kKeyChars / 5 * 4];
  // The decoder does not look at the length of what it is given, nor at characters outside ASCII.
  return text.size() == kKeyChars && std::ranges::all_of(text, [](char c) { return c > ' ' && c < 127; }) &&
         zmq_z85_decode(raw, std::string(text).c_str()) != nullptr;
}

// The words and values of a file, each of `words` at most once and nothing else.
Result<std::map<std::string, std::string>> ParseLines(const std::string& path, std::string_view text,
                                                      const std::vector<std::string>& words) {
  std::map<std::string, std::string> found;
  if (text.size() > kKeyBytesMax) return Fail(fmt::format("{}: is too long for a key", path));
  std::size_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = Trimmed(rest.substr(0, rest.find('\n')), " \t\r");
    rest.remove_prefix(
        std::min(rest.size(), rest.find('\n') == std::string_view::npos ? rest.size() : rest.find('\n') + 1));
    ++number;
    if (line.empty() || line.front() == '#') continue;
    const std::size_t gap = line.find_first_of(" \t");
    const std::string word(line.substr(0, gap));
    // What stands there is not repeated: it may be a secret.
    if (gap == std::string_view::npos || std::ranges::find(words, word) == words.end()) {
      return Fail(fmt::format("{}:{}: must begin with one of: {}", path, number, fmt::join(words, ", ")));
    }
    if (!found.emplace(word, Trimmed(line.substr(gap), " \t\r")).second) {
      return Fail(fmt::format("{}:{}: a second line \"{}\"", path, number, word));
    }
  }
  return found;
}

// What `parse` makes of the file, whose text is wiped.
template <class T>
Result<T> ParseFile(const std::string& path, Result<T> (*parse)(const std::string& path, std::string_view text)) {
  auto text = ReadRegularFile(path, kKeyBytesMax);
  if (!text) return Fail(text.error().message);
  auto parsed = parse(path, *text);
  sodium_memzero(text->data(), text->size());
  return parsed;
}

Result<std::string> TakeKey(const std::string& path, std::map<std::string, std::string>& lines, const char* word) {
  const auto line = lines.find(word);
  if (line == lines.end()) return Fail(fmt::format("{}: has no line \"{} KEY\"", path, word));
  if (!IsKey(line->second))
    return Fail(fmt::format("{}: the {} key is not {} characters of Z85", path, word, kKeyChars));
  return std::move(line->second);
}

}    // namespace

Result<void> WriteNewFile(const std::string& path, unsigned mode, std::string_view text) {
  const auto failed = [&](const char* what) {
    return Fail(fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
  };
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
  if (fd < 0) return failed("cannot make the file");
  Result<void> result;
  if (!WriteAll(fd, text) || ::fsync(fd) != 0) {
    result = failed("cannot write");
    ::unlink(path.c_str());
  }
  ::close(fd);
  return result;
}

KeyPair GenerateKeyPair() {
  char public_key[kKeyChars + 1], secret_key[kKeyChars + 1];
  DT_CHECK(zmq_curve_keypair(public_key, secret_key) == 0);
  KeyPair keys{public_key, secret_key};
  sodium_memzero(secret_key, sizeof secret_key);
  return keys;
}

Result<void> WriteKeyFile(const std::string& path, const KeyPair& keys) {
  return WriteNewFile(path, 0600,
                  fmt::format("# Of this host alone. Its peers need the public key only.\npublic {}\nsecret {}\n",
                              keys.public_key, keys.secret_key));
}

Result<void> WritePublicKeyFile(const std::string& path, std::string_view public_key, std::string_view address) {
  return WriteNewFile(
      path, 0644,
      fmt::format("public {}\n{}", public_key, address.empty() ? "" : fmt::format("address {}\n", address)));
}

SecretOwner CheckedOwner() {
  return ::geteuid() == 0 ? SecretOwner::kAnyUser : SecretOwner::kThisUser;
}

Result<void> CheckSecretFile(const std::string& path, SecretOwner of) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return Fail(fmt::format("{}: {}", path, std::strerror(errno)));
  if (!S_ISREG(status.st_mode)) return Fail(fmt::format("{}: is not a regular file", path));
  if (of == SecretOwner::kThisUser && status.st_uid != 0 && status.st_uid != ::geteuid()) {
    return Fail(fmt::format("{}: holds a secret and belongs to another user; chown it", path));
  }
  if ((status.st_mode & 077) != 0) {
    return Fail(fmt::format("{}: holds a secret and is open to others (mode {:04o}); chmod 600 it", path,
                            status.st_mode & 07777));
  }
  return {};
}

Result<std::string> ReadSecret(const std::string& path, SecretOwner of) {
  if (const auto secret = CheckSecretFile(path, of); !secret) return tl::unexpected(secret.error());
  auto text = ReadRegularFile(path, kKeyBytesMax);
  if (!text) return Fail(text.error().message);
  return std::move(*text);
}

Result<KeyPair> ReadKeyFile(const std::string& path, SecretOwner of) {
  if (const auto secret = CheckSecretFile(path, of); !secret) return tl::unexpected(secret.error());
  return ParseFile(path, ParseKeyFile);
}

Result<KeyPair> ParseKeyFile(const std::string& path, std::string_view text) {
  auto lines = ParseLines(path, text, {"public", "secret"});
  if (!lines) return tl::unexpected(lines.error());
  auto public_key = TakeKey(path, *lines, "public");
  if (!public_key) return tl::unexpected(public_key.error());
  auto secret_key = TakeKey(path, *lines, "secret");
  if (!secret_key) return tl::unexpected(secret_key.error());
  char derived[kKeyChars + 1];
  if (zmq_curve_public(derived, secret_key->c_str()) != 0 || *public_key != derived) {
    return Fail(fmt::format("{}: the public key is not the one of the secret key", path));
  }
  return KeyPair{std::move(*public_key), std::move(*secret_key)};
}

Result<PublicKeyFile> ParsePublicKeyFile(const std::string& path, std::string_view text) {
  auto lines = ParseLines(path, text, {"public", "address"});
  if (!lines) return tl::unexpected(lines.error());
  auto key = TakeKey(path, *lines, "public");
  if (!key) return tl::unexpected(key.error());
  const auto address = lines->find("address");
  if (address == lines->end()) return PublicKeyFile{std::move(*key), {}};
  const auto endpoint = ParseEndpoint(address->second.starts_with("tcp://") ? address->second.substr(6) : "-");
  return PublicKeyFile{std::move(*key), endpoint && endpoint->enabled() ? FormatEndpoint(*endpoint) : "-"};
}

const std::string* AuthorizedKeys::NameOf(const std::string& key) const {
  const auto found = names.find(key);
  return found == names.end() ? nullptr : &found->second;
}

const std::string* AuthorizedKeys::KeyOf(const std::string& name) const {
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : &found->second;
}

const std::string* AuthorizedKeys::NameAt(const std::string& address) const {
  const auto found = by_address.find(address);
  return found == by_address.end() ? nullptr : &found->second;
}

Result<AuthorizedKeys> ReadAuthorizedKeys(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> files;
  for (auto i = std::filesystem::directory_iterator(directory, error); !error && i != end(i); i.increment(error)) {
    files.push_back(i->path().filename());
    if (files.size() > kAuthorizedMax) return Fail(fmt::format("{}: more than {} files", directory, kAuthorizedMax));
  }
  if (error) return Fail(fmt::format("{}: cannot read the directory: {}", directory, error.message()));
  std::ranges::sort(files);

  AuthorizedKeys result;
  for (const std::string& file : files) {
    const std::string path = directory + "/" + file;
    const std::string name = file.ends_with(".pub") ? file.substr(0, file.size() - 4) : "";
    const auto complain = [&](std::string why) { result.complaints.push_back(std::move(why)); };
    if (file.ends_with(".key")) continue;    // a host's own, made where its .pub was made
    if (file.starts_with("..")) continue;    // what the links of a Kubernetes volume lead to
    if (!IsHostName(name)) {
      complain(fmt::format("{}: is not NAME.pub with a NAME of 1 to 64 letters, digits, '.', '_', '-'", path));
      continue;
    }
    const auto read = ParseFile(path, ParsePublicKeyFile);
    if (!read) {
      complain(read.error().message);
      continue;
    }
    if (const auto [other, is_new] = result.names.emplace(read->key, name); !is_new) {
      complain(fmt::format("{}: has the same key as {}.pub", path, other->second));
      continue;
    }
    result.by_name.emplace(name, read->key);
    if (read->address.empty()) continue;
    if (read->address == "-") {
      complain(fmt::format("{}: the address is not of the form tcp://10.0.0.2:7314", path));
    } else if (!result.by_address.emplace(read->address, name).second) {
      complain(fmt::format("{}: has the same address as another", path));
    }
  }
  return result;
}

}    // namespace dthrottle
