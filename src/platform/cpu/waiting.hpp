#pragma once

#include <optional>

#include "base/units.hpp"

namespace offstage::cpu {

/// Idle threads sleep soon: OpenMP's between two loops, Open MPI's while it waits. By default they
/// spin, for so long that a step took 4 times as long beside one busy loop on 4 cores, and 10 times
/// beside four (perf/busy.sh). What the environment says goes first. OpenMP reads its settings when
/// it is loaded: the program starts itself once more, with these, or goes on as it is where it
/// cannot. valgrind does not follow that (--trace-children=yes, or OMP_WAIT_POLICY=passive). Call
/// it first in main.
void let_idle_threads_sleep(char** arguments) noexcept;

/// How long the process's first thread was ready to run while other threads had its cores. Empty
/// where the kernel does not tell.
[[nodiscard]] std::optional<Seconds> waited_for_core();

}  // namespace offstage::cpu
