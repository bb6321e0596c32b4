// Work that takes long: on how many threads it is done, who is told how far it is, and what ends it early.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace dthrottle::lab {

struct Effort {
  std::uint32_t jobs = 1;
  // Which part of all is done, 0 to 1, now and again and from any thread; false: end with what is done.
  std::function<bool(double part)> go_on{};
};

// Calls work(i) for every i below `count`, each once, on so many threads; one that is free takes the next. An exception
// is the end of the program.
template <class Work>
void DoAll(std::size_t count, std::uint32_t jobs, Work&& work) {
  std::atomic<std::size_t> next{0};
  const auto take = [&] {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < std::min<std::size_t>(jobs, count); ++i) others.emplace_back(take);
  take();
}

}    // namespace dthrottle::lab
