#include "io/slices.h"

#include <catch2/catch.hpp>

#include <thread>

#include "io/clock.h"

namespace dthrottle {
namespace {

// A loop with work of so many turns, which is next due at an instant.
struct Working {
  ~Working() {
    slices.Close();
    uv_run(&loop, UV_RUN_NOWAIT);
    uv_loop_close(&loop);
  }

  // Runs the loop until `turns` turns are over.
  void Run(int turns) {
    while (begun < turns) uv_run(&loop, UV_RUN_ONCE);
  }

  uv_loop_t loop;
  const int made = uv_loop_init(&loop);
  int begun = 0, wanted = 1;
  Instant next = Instant::max() - std::chrono::hours(1);
  bool stops = false;
  Slices slices{&loop, {[this](Instant) {
                          ++begun;
                          if (stops) slices.Stop();
                          return begun < wanted;
                        },
                        [this] { return next; }}};
};

TEST_CASE("work goes on turn by turn while there is more, and the loop does other things between") {
  Working work;
  work.wanted = 3;
  work.slices.Start();
  for (int turns = 1; turns <= 3; ++turns) {
    uv_run(&work.loop, UV_RUN_NOWAIT);
    CHECK(work.begun == turns);
  }
  uv_run(&work.loop, UV_RUN_NOWAIT);
  CHECK(work.begun == 3);
}

TEST_CASE("a turn begins when work is due, and not before") {
  Working work;
  work.slices.Start();
  const Instant due = work.next = Now() + std::chrono::milliseconds(20);
  work.Run(2);
  CHECK(Now() >= due);
}

TEST_CASE("any thread wakes the work") {
  Working work;
  work.slices.Start();
  work.Run(1);
  std::thread([&] { work.slices.Wake(); }).join();
  work.Run(2);
  CHECK(work.begun == 2);
}

TEST_CASE("work that has stopped, even itself in a turn, is not woken before it starts again") {
  Working work;
  work.wanted = 2;
  work.stops = true;
  work.slices.Start();
  work.Run(1);
  work.slices.Wake();
  for (int i = 0; i < 5; ++i) uv_run(&work.loop, UV_RUN_NOWAIT);
  CHECK(work.begun == 1);
  work.stops = false;
  work.slices.Start();
  work.Run(2);
  CHECK(work.begun == 2);
}

}    // namespace
}    // namespace dthrottle
