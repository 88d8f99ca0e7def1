#include "train/saves/save_rate.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/error.hpp"
#include "train/offload/storage.hpp"

namespace offstage::train {
namespace {

// Limits of a measurement: the time for which a path is measured, and the bytes of two transfers of
// a save.
constexpr Seconds directory_time{0.5};
constexpr Bytes directory_most = GiB;
constexpr Bytes measuring_memory = 4 * MiB;

dev_t device_of(std::string const& directory) {
  struct stat status {};
  if (stat(directory.c_str(), &status) != 0) {
    throw IoError{"cannot look at", directory, errno};
  }
  return status.st_dev;
}

std::filesystem::path canonical(std::string const& directory) {
  std::error_code error;
  auto found = std::filesystem::canonical(directory, error);
  if (error) {
    throw IoError{"cannot look at", directory, error.value()};
  }
  return found;
}

bool is_inside(std::filesystem::path const& directory, std::filesystem::path const& outer) {
  return std::mismatch(outer.begin(), outer.end(), directory.begin(), directory.end()).first ==
         outer.end();
}

}  // namespace

tiers::StoragePath* path_on(tiers::PathSet const& paths, std::string const& directory) {
  auto const wanted = canonical(directory);
  for (auto const& path : paths) {
    if (is_inside(wanted, canonical(path->settings().directory))) {
      return path.get();
    }
  }
  dev_t const device = device_of(directory);
  for (auto const& path : paths) {
    if (!path->settings().emulation && device_of(path->settings().directory) == device) {
      return path.get();
    }
  }
  return nullptr;
}

checkpoint::SaveRate rate_of_rank(config::CheckpointConfig const& config, int ranks_of_node,
                                  double write_rate) {
  double const share = config.rate_part / ranks_of_node;
  return config.rate_part > 0.0
             ? checkpoint::SaveRate{.bytes_per_second = share * write_rate, .of_paths = share}
             : checkpoint::SaveRate{.bytes_per_second = config.rate / ranks_of_node};
}

double measure_checkpoint_directory(config::RunConfig const& config, mpi::Communicator const& comm,
                                    mpi::Communicator const& node, tiers::StoragePath* path) {
  double rate = path != nullptr ? path->rate().write : 0.0;
  mpi::agree(comm, [&] {
    if (rate > 0.0 || node.rank() != 0) {
      return;
    }
    tiers::PathSettings settings;
    settings.directory = config.checkpoint.dir;
    tiers::StoragePath own{settings, {}, nullptr, nullptr};
    try {
      rate = tiers::measure_rates(
                 path != nullptr ? *path : own, spill_of(config, comm),
                 {.time = directory_time, .most = directory_most, .memory = measuring_memory})
                 .write;
    } catch (IoError const& error) {
      throw IoError{
          fmt::format("checkpoint.rate={:g}%: cannot measure checkpoint.dir={}: {}; give "
                      "checkpoint.rate in bytes per second",
                      100.0 * config.checkpoint.rate_part, config.checkpoint.dir, error.what())};
    }
  });
  return node.broadcast_value(rate, 0);
}

}  // namespace offstage::train
