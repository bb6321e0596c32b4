// The keys of those who may speak: this host's key pair and the public keys of its peers (CURVE, Curve25519 in Z85, 40
// characters).
//
// A key file has the lines "public KEY" and "secret KEY". The authorized keys are a directory with one file a peer,
// NAME.pub, with "public KEY" and perhaps "address tcp://10.0.0.2:7314": a host that connects has to know beforehand
// whose key to expect at an address. Empty lines and lines that begin with # say nothing.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace dthrottle {

inline constexpr std::size_t kKeyChars = 40;

struct KeyPair {
  std::string public_key, secret_key;
};

KeyPair GenerateKeyPair();

// Makes the file, for its owner alone. Fails if it exists: a lost secret cannot be had again.
Result<void> WriteKeyFile(const std::string& path, const KeyPair& keys);

// Makes a file for the other hosts' directories. `address` may be empty. Fails if it exists.
Result<void> WritePublicKeyFile(const std::string& path, std::string_view public_key, std::string_view address);

// The user that a file with a secret may belong to, if it is not root's. Root may look at one for any user.
enum class SecretOwner { kThisUser, kAnyUser };
// The user whose files --check reads. Root may run it for the daemon's user, so it reads those of any user.
SecretOwner CheckedOwner();

// Fails if anybody but that user, or root, could have read or written a file that holds a secret.
Result<void> CheckSecretFile(const std::string& path, SecretOwner of = SecretOwner::kThisUser);

// The text of such a file.
Result<std::string> ReadSecret(const std::string& path, SecretOwner of = SecretOwner::kThisUser);

// Makes a file with the permissions `mode`, on disk. Fails if it exists.
Result<void> WriteNewFile(const std::string& path, unsigned mode, std::string_view text);

// Fails if anybody but that user, or root, could have read or written the file, or if the keys are not a pair.
Result<KeyPair> ReadKeyFile(const std::string& path, SecretOwner of = SecretOwner::kThisUser);

// What the files say, of any text. `path` is for messages, which never repeat what stands in the file.
struct PublicKeyFile {
  std::string key;
  std::string address;    // "10.0.0.2:7314"; empty: there is none; "-": it has another form
};
Result<KeyPair> ParseKeyFile(const std::string& path, std::string_view text);
Result<PublicKeyFile> ParsePublicKeyFile(const std::string& path, std::string_view text);

struct AuthorizedKeys {
  std::map<std::string, std::string> by_name;       // name -> key
  std::map<std::string, std::string> names;         // key -> name
  std::map<std::string, std::string> by_address;    // "10.0.0.2:7314" -> name
  std::vector<std::string> complaints;              // a sentence for each file that was passed over, and why

  // Null if no authorized peer has that key, name or address.
  const std::string* NameOf(const std::string& key) const;
  const std::string* KeyOf(const std::string& name) const;
  const std::string* NameAt(const std::string& address) const;
};

// Fails only if the directory cannot be read. Where files have one key or one address, the first
// by name counts.
Result<AuthorizedKeys> ReadAuthorizedKeys(const std::string& directory);

}    // namespace dthrottle
