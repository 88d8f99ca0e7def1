#include "base/team.hpp"

#ifdef _OPENMP
#include <omp.h>

#include <atomic>

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

void set_team_size([[maybe_unused]] int threads) {
#ifdef _OPENMP
  auto const no_others = hold_starts();  // or they take what was found for the team
  require_threads(threads - 1, "OpenMP");
  omp_set_num_threads(threads);
  if (threads > 1) {
    // The team is made while there is room for it, and stays.
    std::atomic<int> members{0};
#pragma omp parallel
    ++members;
    made = members;
  }
#endif
}

void require_team() {
#ifdef _OPENMP
  if (made < team_size()) {
    require_threads(team_size() - 1, "OpenMP");
  }
#endif
}

}  // namespace offstage
