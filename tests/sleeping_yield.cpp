// Preloaded into ranks by tests/mpi.sh: a rank that waits for another one sleeps. sched_yield
// alone, which Open MPI calls while it waits, leaves it a share of the core that tests beside it
// need.
#include <ctime>

// The name is the system's.
extern "C" int sched_yield() noexcept {
  timespec const pause{.tv_sec = 0, .tv_nsec = 50'000};
  nanosleep(&pause, nullptr);
  return 0;
}
