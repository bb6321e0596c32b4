#include "query/http_line.h"

#include <catch2/catch.hpp>

namespace dthrottle {
namespace {

TEST_CASE("a connection that begins with an HTTP request line is told from one that begins with a tag") {
  for (const char* http : {"GET / HTTP/1.1\r\nHost: x\r\n", "POST /a b HTTP/1.0\r\n", "OPTIONS * HTTP/1.1\r\n",
                           "PRI * HTTP/2.0\r\n", "GET http://x/ HTTP/1.1\r\n"}) {
    INFO(http);
    CHECK(BeginsWithHttp(http, false));
  }
  for (const char* tag : {"", "\n", "GET\n", "GET /\n", "get / HTTP/1.1\r\n", "C\nGET / HTTP/1.1\r\n",
                          " / HTTP/1.1\r\n", "GET  HTTP/1.1\r\n", "login:GET / HTTP/1.1\r\n",
                          "ABCDEFGHIJKLMNOPQ / HTTP/1.1\r\n"}) {
    INFO(tag);
    CHECK_FALSE(BeginsWithHttp(tag, false));
  }
  CHECK_FALSE(BeginsWithHttp("GET / HTTP/1.1\nHost: x\r\n", false));    // a client's tag, as libraries send it
  CHECK(BeginsWithHttp("GET /aaaa", true));
  CHECK_FALSE(BeginsWithHttp("GET aaaa", true));
  CHECK_FALSE(BeginsWithHttp("alice /aaaa", true));
}

}    // namespace
}    // namespace dthrottle
