#include "base/team.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace offstage {

int team_size() noexcept {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

void set_team_size([[maybe_unused]] int threads) noexcept {
#ifdef _OPENMP
  omp_set_num_threads(threads);
#endif
}

}  // namespace offstage
