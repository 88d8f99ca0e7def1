#include "train/storage.hpp"

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/log.hpp"
#include "platform/cpu/affinity.hpp"
#include "tiers/spill_directory.hpp"

namespace offstage::train {

void require_storage(RunConfig const& config) {
  if (!config.tiers_path.empty() && !config.allow_tmpfs &&
      tiers::lies_in_memory(config.tiers_path)) {
    throw UsageError{fmt::format(
        "tiers.path={} lies in host memory (tmpfs), which tiers.host-memory would not count; name "
        "a "
        "directory on a disk, leave tiers.path out to keep the state in host memory, or set "
        "tiers.allow-tmpfs=true",
        config.tiers_path)};
  }
}

void tidy_storage(RunConfig const& config) {
  if (config.tiers_path.empty()) {
    return;
  }
  auto const report = tiers::tidy_spills(config.tiers_path, cpu::host_name());
  for (std::string const& line : report.removed) {
    log::warning("tiers.path: removed {}", line);
  }
  for (std::string const& line : report.left) {
    log::warning("tiers.path: {}", line);
  }
}

}  // namespace offstage::train
