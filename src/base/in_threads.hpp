#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <vector>

#include "base/error.hpp"
#include "base/team.hpp"
#include "base/thread.hpp"

namespace offstage {

/// Calls work(i) once for each i below `count`, on as many threads as a team has, or as can start.
/// Errors: the first one in the order of i, after all calls.
template <class Work>
void for_each_in_threads(std::size_t count, Work const& work) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::exception_ptr> errors(count);
  auto const run = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<NamedThread> threads;
    auto const most = std::min(count, static_cast<std::size_t>(std::max(1, team_size())));
    try {
      for (std::size_t i = 1; i < most; ++i) {
        threads.emplace_back("for each", run);
      }
    } catch (IoError const&) {  // those that there are do all of it
    }
    run();
  }
  for (std::exception_ptr const& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

}  // namespace offstage
