#include "io/keys.h"

#include <sys/stat.h>
#include <fstream>

#include "test/io/net.h"

namespace dthrottle {
namespace {

using testing::TemporaryFolder;

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

TEST_CASE("a written key file reads back, is its owner's alone and is never written over") {
  const TemporaryFolder folder;
  const std::string path = folder.path + "/key";
  const KeyPair keys = GenerateKeyPair();
  CHECK(keys.public_key.size() == kKeyChars);
  CHECK(keys.public_key != GenerateKeyPair().public_key);
  REQUIRE(WriteKeyFile(path, keys));
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0600);
  const auto read = ReadKeyFile(path);
  REQUIRE(read);
  CHECK(read->public_key == keys.public_key);
  CHECK(read->secret_key == keys.secret_key);
  const auto again = WriteKeyFile(path, GenerateKeyPair());
  REQUIRE_FALSE(again);
  CHECK(again.error().message == path + ": cannot make the file: File exists");
  CHECK(ReadKeyFile(path)->secret_key == keys.secret_key);
}

TEST_CASE("a secret that others could have read or written is refused by name") {
  const TemporaryFolder folder;
  const std::string path = folder.path + "/key";
  REQUIRE(WriteKeyFile(path, GenerateKeyPair()));
  for (const mode_t mode : {0640, 0604, 0620, 0601}) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    const auto read = ReadKeyFile(path);
    REQUIRE_FALSE(read);
    CHECK(read.error().message ==
          fmt::format("{}: holds a secret and is open to others (mode {:04o}); chmod 600 it", path, mode));
  }
  REQUIRE(::chmod(path.c_str(), 0400) == 0);
  CHECK(ReadKeyFile(path));
  if (::geteuid() == 0) {
    REQUIRE(::chown(path.c_str(), 4711, 0) == 0);
    const auto read = ReadKeyFile(path);
    REQUIRE_FALSE(read);
    CHECK(read.error().message == path + ": holds a secret and belongs to another user; chown it");
  }
}

TEST_CASE("what is no pair of keys is refused, and a secret never stands in a message") {
  const TemporaryFolder folder;
  const std::string path = folder.path + "/key";
  const KeyPair a = GenerateKeyPair(), b = GenerateKeyPair();
  const auto fails = [&](const std::string& text, const std::string& why) {
    Write(path, text);
    ::chmod(path.c_str(), 0600);
    const auto read = ReadKeyFile(path);
    REQUIRE_FALSE(read);
    CHECK(read.error().message == path + why);
    CHECK(read.error().message.find(a.secret_key) == std::string::npos);
  };
  fails("", ": has no line \"public KEY\"");
  fails("public " + a.public_key + "\n", ": has no line \"secret KEY\"");
  fails("public " + a.public_key + "\nsecret short\n", ": the secret key is not 40 characters of Z85");
  fails("public " + b.public_key + "\nsecret " + a.secret_key, ": the public key is not the one of the secret key");
  fails("public " + a.public_key + "\n" + a.secret_key, ":2: must begin with one of: public, secret");
  fails("secret " + a.secret_key + "\nsecret " + a.secret_key, ":2: a second line \"secret\"");
  fails(std::string(5000, '#'), ": is too long for a key");
  Write(path, "# this host\n\n  public\t" + a.public_key + " \r\nsecret " + a.secret_key);
  CHECK(ReadKeyFile(path));
  CHECK_FALSE(ReadKeyFile(folder.path));
  CHECK_FALSE(ReadKeyFile(folder.path + "/none"));
}

TEST_CASE("authorized keys are a file a peer; what is none is passed over by name") {
  const TemporaryFolder folder;
  const std::string at = folder.path + "/";
  const std::string web1 = GenerateKeyPair().public_key, web2 = GenerateKeyPair().public_key;
  REQUIRE(WritePublicKeyFile(at + "web1.pub", web1, "tcp://10.0.0.1:7314"));
  REQUIRE(WritePublicKeyFile(at + "web2.pub", web2, ""));
  REQUIRE(WritePublicKeyFile(at + "web3.pub", web1, ""));
  REQUIRE(WritePublicKeyFile(at + "web4.pub", GenerateKeyPair().public_key, "tcp://name:1"));
  REQUIRE(WritePublicKeyFile(at + "web5.pub", GenerateKeyPair().public_key, "tcp://10.0.0.1:7314"));
  std::filesystem::create_directory(at + "..2026_11_30");    // as Kubernetes mounts a ConfigMap
  std::filesystem::create_symlink("..2026_11_30", at + "..data");
  Write(at + "README", "keys");
  Write(at + "a b.pub", "");
  Write(at + "junk.pub", std::string("\0\1\2 \xff\n", 6));
  Write(at + "secret.pub", "secret " + web1 + "\n");
  std::filesystem::create_directory(at + "folder.pub");
  const auto read = ReadAuthorizedKeys(folder.path);
  REQUIRE(read);
  CHECK(read->names.size() == 4);
  CHECK(*read->NameOf(web1) == "web1");
  CHECK(*read->KeyOf("web2") == web2);
  CHECK(*read->NameAt("10.0.0.1:7314") == "web1");
  CHECK(read->NameAt("10.0.0.2:7314") == nullptr);
  CHECK(read->KeyOf("web3") == nullptr);
  const std::string no_name = ": is not NAME.pub with a NAME of 1 to 64 letters, digits, '.', '_', '-'";
  CHECK(read->complaints ==
        std::vector<std::string>{
            at + "README" + no_name, at + "a b.pub" + no_name, at + "folder.pub: is a directory",
            at + "junk.pub:1: must begin with one of: public, address",
            at + "secret.pub:1: must begin with one of: public, address", at + "web3.pub: has the same key as web1.pub",
            at + "web4.pub: the address is not of the form tcp://10.0.0.2:7314",
            at + "web5.pub: has the same address as another"});
  CHECK_FALSE(ReadAuthorizedKeys(at + "none"));
}

}    // namespace
}    // namespace dthrottle
