// How long frames of peers gather before a host reads them.
#include "bus/gathering.h"

#include <catch2/catch.hpp>

namespace dthrottle {
namespace {

using namespace std::chrono_literals;

class Reader {
 public:
  // The pause after so much was received in a second.
  Duration Pause(std::size_t peers, std::uint64_t frames, std::uint64_t bytes, Duration period = 1s) {
    counts_.received += frames, counts_.received_bytes += bytes;
    now_ += 1s;
    gathering.Look(peers, period, counts_, now_);
    gathering.Begin(now_);
    return gathering.until() - now_;
  }

  Gathering gathering;

 private:
  ExchangeCounts counts_;
  Instant now_ = Instant(1h);
};

TEST_CASE("frames are read as they come unless there are many, of many peers or large") {
  Reader reader;
  reader.Pause(1, 0, 0);
  CHECK(reader.Pause(64, 249, 1000) == 0ms);
  CHECK(reader.Pause(63, 10'000, 1000) == 0ms);
  CHECK_FALSE(reader.gathering.of_small());
  CHECK(reader.Pause(64, 250, 1000) == 5ms);
  CHECK(reader.gathering.of_all());
  CHECK(reader.gathering.of_small());
  CHECK(reader.Pause(2, 10, (1 << 20) - 1) == 0ms);
  CHECK(reader.Pause(2, 10, 1 << 20) == 20ms);    // a fiftieth of the period
  CHECK_FALSE(reader.gathering.of_all());
  CHECK(reader.Pause(1000, 1000, 1 << 20, 5s) == 50ms);
  CHECK(reader.Pause(1000, 1000, 1 << 20, 100ms) == 2ms);
  CHECK(reader.gathering.of_all());
  CHECK_FALSE(reader.gathering.of_small());
  CHECK(reader.Pause(1000, 10, 1000) == 0ms);    // it goes by what has come of late
}

}    // namespace
}    // namespace dthrottle
