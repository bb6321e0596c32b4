#include <catch2/catch.hpp>
#include <functional>
#include <string>

#include "base/prng.h"
#include "frontend/http/reader.h"

namespace dthrottle {
namespace {

// What a connection reads from a stream that arrives in pieces: a line for each request, and the status of the fault
// that ends it.
std::string ReadInPieces(std::string_view stream, const std::function<std::size_t()>& piece) {
  HttpReader reader;
  std::string said, unread;
  while (!stream.empty()) {
    const std::size_t n = std::min(piece(), stream.size());
    unread += stream.substr(0, n);
    stream.remove_prefix(n);
    for (std::string_view bytes = unread;;) {
      HttpRequest request;
      const auto step = reader.Next(bytes, request);
      if (!step) return said + std::to_string(step.error().status);
      bytes.remove_prefix(step->bytes);
      if (!step->whole) {
        CHECK(bytes.size() < kHttpHeadBytesMax);
        unread = std::string(bytes);
        break;
      }
      said += std::string(request.method) + ' ' + std::string(request.target) + ' ' + std::string(request.host) + ' ' +
              std::string(request.tag.value_or("-")) + (request.keep_alive ? " on" : " last") +
              (request.has_body ? " body" : "") + '\n';
    }
  }
  return said;
}

std::string Read(std::string_view stream) {
  return ReadInPieces(stream, [] { return std::size_t{1} << 30; });
}

std::string WithFields(std::string_view fields) {
  return Read("GET / HTTP/1.1\r\n" + std::string(fields) + "\r\n");
}

TEST_CASE("a request is its line and its fields") {
  CHECK(Read("GET /check?tag=C HTTP/1.1\r\nHost: localhost\r\n\r\n") == "GET /check?tag=C localhost - on\n");
  CHECK(Read("HEAD / HTTP/1.0\r\n\r\n") == "HEAD /  - last\n");
  CHECK(Read("\r\n\r\nGET / HTTP/1.1\r\n\r\nGET /a b HTTP/1.1\r\n\r\n") == "GET /  - on\nGET /a b  - on\n");
  CHECK(WithFields("hOST: \t a \t\r\nDTHROTTLE-tag: a b: c\r\nX-Other: 1\r\nX-Other: 2\r\n") == "GET / a a b: c on\n");
  CHECK(WithFields("Dthrottle-Tag:\r\n") == "GET /   on\n");
  CHECK(WithFields("Dthrottle-Tag: l\xc3\xb6we\r\n") == "GET /  l\xc3\xb6we on\n");
}

TEST_CASE("a connection goes on unless the client says otherwise, and with HTTP/1.0 only if it says so") {
  CHECK(WithFields("Connection: close\r\n") == "GET /  - last\n");
  CHECK(WithFields("Connection: upgrade, Close\r\n") == "GET /  - last\n");
  CHECK(WithFields("Connection: closed\r\n") == "GET /  - on\n");
  CHECK(Read("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n") == "GET /  - on\n");
}

TEST_CASE("a body is announced by its length or by its coding, and none has length 0") {
  CHECK(WithFields("Content-Length: 0\r\n") == "GET /  - on\n");
  CHECK(WithFields("Content-Length: 10\r\n") == "GET /  - on body\n");
  CHECK(WithFields("Content-Length: 99999999999999999999999\r\n") == "GET /  - on body\n");
  CHECK(WithFields("Transfer-Encoding: chunked\r\n") == "GET /  - on body\n");
  CHECK(WithFields("Transfer-Encoding: identity\r\n") == "GET /  - on body\n");
}

TEST_CASE("what two readers could read in two ways is refused") {
  for (const char* fields : {"Content-Length: 0\r\nContent-Length: 0\r\n",
                             "Content-Length: 0, 0\r\n",
                             "Content-Length: +1\r\n",
                             "Content-Length: 0x10\r\n",
                             "Content-Length:\r\n",
                             "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                             "Host: a\r\nHost: a\r\n",
                             "Dthrottle-Tag: a\r\nDthrottle-Tag: a\r\n",
                             "Sec-Fetch-Site: none\r\nSec-Fetch-Site: none\r\n",
                             "Host : a\r\n",
                             " Host: a\r\n",
                             "A: b\r\n c\r\n",
                             "A: b\r\n\tc\r\n",
                             "A\r\n",
                             ": b\r\n",
                             "A\xc3: b\r\n",
                             "A(: b\r\n",
                             "A: b\rc\r\n",
                             "A: b\nHost: c\r\n",
                             "A: b\x01\r\n",
                             "A: b\x7f\r\n"}) {
    CAPTURE(fields);
    CHECK(WithFields(fields) == "400");
  }
  using namespace std::string_literals;
  CHECK(WithFields("A: b\0c\r\n"s) == "400");
}

TEST_CASE("what is no request is refused with its first line, and another version by its name") {
  for (const char* stream : {"GET\r\n", "GET /\r\n", "GET / \r\n", " GET / HTTP/1.1\r\n", "GET  HTTP/1.1\r\n",
                             "G(T / HTTP/1.1\r\n", "GET /\x01 HTTP/1.1\r\n", "GET / HTTP/1.1\n", "\nGET / HTTP/1.1\r\n",
                             "*3\r\n$3\r\nSET\r\n", "C\nC\n", "GET / http/1.1\r\n", "\x16\x03\x01\n"}) {
    CAPTURE(stream);
    CHECK(Read(stream) == "400");
  }
  for (const char* version : {"HTTP/1.2", "HTTP/2.0", "HTTP/9.9", "HTTP/1.11"}) {
    CHECK(Read("GET / " + std::string(version) + "\r\n") == "505");
  }
}

TEST_CASE("line, fields and their number have bounds, which are exact") {
  const std::string line = "GET / HTTP/1.1\r\n", end = "\r\n";
  const std::size_t room = kHttpHeadBytesMax - line.size() - end.size();
  const auto field = [](std::size_t bytes) { return "X: " + std::string(bytes - 5, 'x') + "\r\n"; };
  CHECK(Read(line + field(room) + end) == "GET /  - on\n");
  CHECK(Read(line + field(room + 1) + end) == "431");
  CHECK(Read("GET /" + std::string(kHttpHeadBytesMax, 'x')) == "414");
  std::string fields;
  for (std::size_t i = 0; i < kHttpFieldsMax; ++i) fields += "X: y\r\n";
  CHECK(WithFields(fields) == "GET /  - on\n");
  CHECK(WithFields(fields + "X: y\r\n") == "431");
}

TEST_CASE("requests are the same however the stream is cut") {
  const std::string good = "GET /check?tag=C HTTP/1.1\r\nHost: localhost\r\nX: y\r\n\r\n\r\nHEAD / HTTP/1.0\r\n\r\n";
  for (const std::string& stream : {good + good, good + "GET / HTTP/1.1\r\n a\r\n\r\n", good + "GET / HTTP/3\r\n",
                                    good + std::string(2 * kHttpHeadBytesMax, 'x')}) {
    const std::string whole = Read(stream);
    CHECK(ReadInPieces(stream, [] { return std::size_t{1}; }) == whole);
    Prng prng(7);
    for (int round = 0; round < 100; ++round) {
      CHECK(ReadInPieces(stream, [&] { return 1 + static_cast<std::size_t>(prng.Below(60)); }) == whole);
    }
  }
}

}    // namespace
}    // namespace dthrottle
