#include "train/memory/crowding.hpp"

#include <fmt/format.h>

#include "platform/cpu/affinity.hpp"
#include "platform/cpu/waiting.hpp"

namespace offstage::train {
namespace {

constexpr Seconds long_enough{4.0};  ///< so that one cron job is no crowd
constexpr double too_much = 0.2;     ///< part of the time

}  // namespace

std::string Crowding::judge(Seconds waited, Seconds elapsed) {
  double const share = waited / elapsed;
  if (share < too_much) {
    return {};
  }
  return fmt::format(
      "{}: in the last {:.0f} s the main thread waited {:.0f} % of the time for a core (cores {}): "
      "other processes run there (two mpirun on one machine bind their ranks to the same cores "
      "unless both have --bind-to none), a quota limits this one, or ranks times run.threads "
      "exceed "
      "the cores; steps take longer than they would alone",
      cpu::host_name(), elapsed.count(), 100.0 * share, cpu::format_cpus(cpu::allowed_cpus()));
}

std::string Crowding::look() {
  if (said_ || (waited_ && watch_.elapsed() < long_enough)) {
    return {};
  }
  auto const waited = cpu::waited_for_core();
  if (!waited) {
    return {};
  }
  Seconds const elapsed = watch_.lap();
  std::string sentence = waited_ ? judge(*waited - *waited_, elapsed) : std::string{};
  waited_ = waited;
  said_ = !sentence.empty();
  return sentence;
}

}  // namespace offstage::train
