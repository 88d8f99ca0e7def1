#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/state_layout.hpp"
#include "base/units.hpp"
#include "state/shard.hpp"

namespace offstage::checkpoint {

/// A file that holds one subgroup's state: see README.md.
struct ExtentFile {
  std::string name;  ///< without directory
  Bytes bytes{};
  std::int64_t dataset_elements{};  ///< up to format 3, of extent_dataset: 3 N or more
};

/// Where one subgroup's state lies.
struct StoredSubgroup {
  Bytes offset{};            ///< of its first byte in its file
  std::int64_t elements{};   ///< N
  std::uint64_t checksum{};  ///< of the array of the blocks' checksums
  std::vector<state::Piece> pieces;
  std::optional<ExtentFile> own_file{};  ///< none: it lies in the manifest's file
  Bytes checksum_offset{};               ///< of the array of checksums in that; while it is written

  /// How many checksums it has.
  [[nodiscard]] std::int64_t blocks(StateLayout const& layout) const;
};

/// The list of what one rank saved, in its own file or its node's, and in extent files. It stands
/// beside them as JSON.
struct Manifest {
  std::int64_t format{};
  int rank{};
  int ranks{};
  std::string file;  ///< without directory
  Bytes file_bytes{};
  std::vector<StoredSubgroup> subgroups{};  ///< K counts them

  /// The group of the planes of subgroup K: "/subgroup/K/", in a file of its own "/". Up to format
  /// 3 the dataset that holds all of it: "/subgroup/K", "/extent". In the file of a node they stand
  /// below "/rank/R".
  [[nodiscard]] std::string place(std::size_t k) const;
  /// "/checksum/K", in the file of a node "/rank/R/checksum/K".
  [[nodiscard]] std::string checksum_name(std::size_t k) const;
};

/// Format 3 and those before it have a dataset (3, N) in the place of planes.
constexpr std::int64_t format_of_planes = 4;
/// From this format on ranks have equal parts of a layer; before, chunks were dealt otherwise.
constexpr std::int64_t format_of_equal_parts = 7;
[[nodiscard]] constexpr state::Deal deal_of(std::int64_t format) noexcept {
  return format >= format_of_equal_parts ? state::Deal::equal : state::Deal::spread;
}
/// Checkpoints of today with a file for each rank, and with one for each node.
constexpr std::int64_t format_of_rank_files = 7;
constexpr std::int64_t format_of_node_files = 8;
/// Format 6 was format 5 with a file for each node.
[[nodiscard]] constexpr bool has_node_files(std::int64_t format) noexcept {
  return format == format_of_node_files || format == 6;
}

[[nodiscard]] std::string to_json(Manifest const& manifest);

/// Errors: DataError naming `path` and the field that is missing, of another type or out of range.
///         What it returns is consistent: every subgroup, of this layout, lies inside its file, pieces fill it.
[[nodiscard]] Manifest parse_manifest(std::string const& text, StateLayout const& layout,
                                      std::string const& path);

}  // namespace offstage::checkpoint
