#pragma once

#include <cstdint>
#include <string>

#include "base/units.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/master.hpp"
#include "state/shard.hpp"

/// Checks of the numbers in a checkpoint. Someone who can write a file can write its checksum too.
/// The numbers are therefore compared with limits and with the sizes of files before memory or time
/// is spent on them.
namespace offstage::checkpoint {

constexpr std::int64_t most_ranks = 1 << 20;
constexpr std::int64_t most_extents = 1 << 22;
constexpr Bytes most_manifest_bytes = 256 * MiB;
constexpr Bytes most_master_bytes = Bytes{1} << 50;
/// Limit of all files of a checkpoint together: more than 2^50 parameters need, and far below the
/// overflow of sums.
constexpr Bytes most_checkpoint_bytes = Bytes{1} << 60;

/// Checks that a value is from `low` to `high`.
/// Errors: DataError naming `path` and `what` if it is not.
void require_within(std::int64_t value, std::int64_t low, std::int64_t high,
                    std::string const& what, std::string const& path);

/// Checks the counts of the run, its model, and that the files are large enough for that model.
/// Errors: DataError naming `path`.
void require_plausible(Master const& master, std::string const& path);

/// The largest size that a manifest of this rank's shard can have.
[[nodiscard]] Bytes manifest_limit(state::ShardMap const& map, int rank);

/// Checks that the subgroups hold the rank's shard and nothing else. Errors: DataError naming
/// `path`.
void require_shard(Manifest const& manifest, state::ShardMap const& map, std::string const& path);

}  // namespace offstage::checkpoint
