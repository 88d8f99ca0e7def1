#include "base/team.hpp"

#ifdef _OPENMP
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "base/error.hpp"
#include "base/thread.hpp"
#endif

namespace offstage {
#ifdef _OPENMP
namespace {

/// Threads of the calling thread's team that were there at once: OpenMP keeps them.
thread_local int made = 1;

}  // namespace
#endif

int team_size() noexcept {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

// oneDNN deals its work to the threads that it asks for. What a smaller team leaves out would be
// wrong without a sign.
void set_team_size([[maybe_unused]] int threads) {
#ifdef _OPENMP
  auto const no_others = hold_starts();  // or they take what was found for the team
  require_threads(threads - 1, "OpenMP");
  int const before = omp_get_max_threads();
  omp_set_dynamic(0);
  omp_set_max_active_levels(std::max(1, omp_get_max_active_levels()));
  omp_set_num_threads(threads);
  if (threads > 1) {
    // The team is made while there is room for it, and stays.
    std::atomic<int> members{0};
#pragma omp parallel
    ++members;
    made = members;
    if (made < threads) {
      omp_set_num_threads(before);
      throw UsageError{fmt::format(
          "OpenMP gives {} of {} threads, as OMP_THREAD_LIMIT is {}; unset it, or ask for as many: "
          "by run.threads, or by OMP_NUM_THREADS where a command has no such key",
          made, threads, omp_get_thread_limit())};
    }
  }
#endif
}

int most_of_team() noexcept {
#ifdef _OPENMP
  return omp_get_thread_limit();
#else
  return 1;
#endif
}

void limit_team_size([[maybe_unused]] int most) noexcept {
#ifdef _OPENMP
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    omp_set_num_threads(std::min({most, most_of_team(), omp_get_max_threads()}));
  }
#endif
}

void require_team() {
#ifdef _OPENMP
  if (made < team_size()) {
    set_team_size(team_size());
  }
#endif
}

}  // namespace offstage
