#include "train/offload/storage.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.hpp"
#include "base/log.hpp"
#include "platform/cpu/affinity.hpp"
#include "tiers/spill_directory.hpp"

namespace offstage::train {

void require_storage(config::RunConfig const& config) {
  for (auto path = config.paths.begin(); path != config.paths.end(); ++path) {
    if (!config.allow_tmpfs && tiers::lies_in_memory(path->directory)) {
      throw UsageError{fmt::format(
          "tiers.path={} lies in host memory (tmpfs), which tiers.host-memory would not count; "
          "name a directory on a disk, leave tiers.path out to keep the state in host memory, or "
          "set tiers.allow-tmpfs=true",
          path->directory)};
    }
    for (auto other = config.paths.begin(); other != path; ++other) {
      std::error_code not_there;  // the tiers report it
      if (std::filesystem::equivalent(path->directory, other->directory, not_there)) {
        throw UsageError{
            fmt::format("tiers.path={} and tiers.path={} are the same directory; keep one",
                        other->directory, path->directory)};
      }
    }
  }
}

void tidy_storage(config::RunConfig const& config) {
  for (tiers::PathSettings const& path : config.paths) {
    auto const report = tiers::tidy_spills(path.directory, cpu::host_name());
    for (std::string const& line : report.removed) {
      log::warning("tiers.path: {}", line);
    }
    for (std::string const& line : report.left) {
      log::warning("tiers.path: {}", line);
    }
  }
}

std::string spill_of(config::RunConfig const& config, mpi::Communicator const& comm) {
  return tiers::spill_name({.job = config.job ? config.job->id : "",
                            .run = std::filesystem::path{config.run_dir}.filename().string(),
                            .host = cpu::host_name(),
                            .process = getpid(),
                            .rank = comm.rank()});
}

}  // namespace offstage::train
