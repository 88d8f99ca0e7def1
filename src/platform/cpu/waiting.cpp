#include "platform/cpu/waiting.hpp"

#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace offstage::cpu {
namespace {

/// Turns of the loop in which an idle OpenMP thread spins. Whoever sleeps leaves its core to
/// others, who do not give it back at once: with 1000, libgomp's own number where it knows that it
/// has more threads than cores, threads sleep at nearly every barrier. perf/busy.sh compares it
/// with libgomp's number otherwise.
constexpr char const* spin_turns = "5000";

/// Whether the user named the dynamic loader, with the program as its first argument: then
/// /proc/self/exe is the loader. The kernel gives a base address to a loader that it chose itself.
bool is_started_by_name_of_loader() noexcept {
  return getauxval(AT_BASE) == 0;
}

}  // namespace

void let_idle_threads_sleep(char** arguments) noexcept {
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  if (getenv("OMP_WAIT_POLICY") != nullptr || getenv("GOMP_SPINCOUNT") != nullptr) {
    return;
  }
  // Without the variable the program would start itself for ever.
  if (is_started_by_name_of_loader() || setenv("GOMP_SPINCOUNT", spin_turns, 0) != 0) {
    return;
  }
  std::error_code error;
  auto const program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    execv(program.c_str(), arguments);  // returns if it cannot: then threads spin
  }
}

std::optional<Seconds> waited_for_core() {
  std::ifstream file{"/proc/self/schedstat"};  // of the first thread, for all that its name says
  std::int64_t ran = 0;
  std::int64_t waited = 0;
  if (!(file >> ran >> waited)) {
    return std::nullopt;
  }
  return Seconds{static_cast<double>(waited) * 1e-9};
}

}  // namespace offstage::cpu
