#include "io/timer.h"

#include <catch2/catch.hpp>

#include <optional>

namespace dthrottle {
namespace {

using std::chrono::milliseconds;

// A loop that has to be empty in the end.
struct Loop {
  ~Loop() {
    uv_run(&loop, UV_RUN_NOWAIT);
    CHECK(uv_loop_close(&loop) == 0);
  }

  uv_loop_t loop;
  const int made = uv_loop_init(&loop);
};

TEST_CASE("a timer fires every period until it is stopped") {
  Loop its;
  int fired = 0;
  std::optional<Timer> timer;
  timer.emplace(&its.loop, [&] {
    if (++fired == 3) timer->Stop();
  });
  timer->StartNowAndEvery(milliseconds(1));
  CHECK(timer->due_in() == Duration::zero());
  uv_run(&its.loop, UV_RUN_DEFAULT);
  CHECK(fired == 3);
  CHECK(timer->due_in() == std::nullopt);
}

TEST_CASE("a timer may go in its own work") {
  Loop its;
  int fired = 0;
  std::optional<Timer> timer;
  timer.emplace(&its.loop, [&fired, &timer] {
    timer.reset();
    ++fired;
  });
  timer->StartOnce(Duration(1));
  uv_run(&its.loop, UV_RUN_DEFAULT);
  CHECK(fired == 1);
}

TEST_CASE("a timer that is closed never fires") {
  Loop its;
  int fired = 0;
  Timer timer(&its.loop, [&] { ++fired; });
  timer.StartOnce(Duration::zero());
  timer.Close();
  timer.StartOnce(Duration::zero());
  uv_run(&its.loop, UV_RUN_DEFAULT);
  CHECK(fired == 0);
}

}    // namespace
}    // namespace dthrottle
