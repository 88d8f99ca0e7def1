#pragma once

#include <cstdint>
#include <string>

#include "base/units.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/master.hpp"
#include "state/shard.hpp"

/// Whoever can write a file can write its checksum too. What a checkpoint says is therefore held against limits
/// and against the sizes of its files before memory or time is spent on it.
namespace offstage::checkpoint {

constexpr std::int64_t most_ranks = 1 << 20;
constexpr std::int64_t most_extents = 1 << 22;
constexpr Bytes most_manifest_bytes = 256 * MiB;
constexpr Bytes most_master_bytes = Bytes{1} << 50;

/// Errors: DataError naming `path` and `what` if the value is not from `low` to `high`.
void require_within(std::int64_t value, std::int64_t low, std::int64_t high,
                    std::string const& what, std::string const& path);

/// What a run counts, its model, and that the files are large enough for that model.
/// Errors: DataError naming `path`.
void require_plausible(Master const& master, std::string const& path);

/// No manifest of this rank's shard is larger.
[[nodiscard]] Bytes manifest_limit(state::ShardMap const& map, int rank);

/// That the subgroups hold the rank's shard and nothing else. Errors: DataError naming `path`.
void require_shard(Manifest const& manifest, state::ShardMap const& map, std::string const& path);

}  // namespace offstage::checkpoint
