#include <catch2/catch.hpp>
#include <zmq.hpp>

#include <chrono>
#include <string>

#include "io/clock.h"
#include "io/library_input.h"

namespace dthrottle::testing {
namespace {

using namespace std::chrono_literals;

TEST_CASE("library input: what hosts say waits for the pauses of the thread that reads, and all of it comes") {
  constexpr int kMessages = 10;
  constexpr Duration kPause = 20ms;
  zmq::context_t context;
  zmq::socket_t from(context, zmq::socket_type::push), to(context, zmq::socket_type::pull);
  from.set(zmq::sockopt::linger, 0);
  to.set(zmq::sockopt::rcvtimeo, 20'000);
  to.bind("tcp://127.0.0.1:*");
  from.connect(to.get(zmq::sockopt::last_endpoint));
  const auto pass = [&](const std::string& said) {
    zmq::message_t heard;
    REQUIRE(from.send(zmq::buffer(said)));
    REQUIRE(to.recv(heard));
    CHECK(heard.to_string_view() == said);
  };
  pass("connected");
  PauseLibraryInput(kPause);
  pass("the pause begins behind a look");
  const Instant begun = Now();
  for (int i = 0; i < kMessages; ++i) pass(std::to_string(i));
  const Duration took = Now() - begun;
  PauseLibraryInput(Duration(0));
  CHECK(took >= (kMessages - 1) * kPause);    // one look sends a message and the next one hears it
  pass("and goes on");
}

}    // namespace
}    // namespace dthrottle::testing
