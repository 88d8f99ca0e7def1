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

/// The newest format that this program writes and reads; it reads older ones and refuses newer ones
/// by name.
constexpr int format_version = 8;

/// A file that holds one subgroup's state: see README.md.
struct ExtentFile {
  std::string name;  ///< without directory
  Bytes bytes{};
  std::int64_t dataset_elements{};  ///< up to format 3: elements of extent_dataset, 3 N or more
};

/// The place of one subgroup's state.
struct StoredSubgroup {
  Bytes offset{};            ///< offset of its first byte in its file
  std::int64_t elements{};   ///< N
  std::uint64_t checksum{};  ///< checksum of the array of the blocks' checksums
  std::vector<state::Piece> pieces;
  std::optional<ExtentFile> own_file{};  ///< none: the state lies in the manifest's file
  Bytes checksum_offset{};  ///< offset of that array in the manifest's file; while that is written

  /// Number of the state's checksums.
  [[nodiscard]] std::int64_t blocks(StateLayout const& layout) const;
};

/// The list of the state that one rank saved, in its own file or its node's, and in extent files.
/// The manifest lies beside them as JSON.
struct Manifest {
  std::int64_t format{};
  int rank{};
  int ranks{};
  std::string file;  ///< without directory
  Bytes file_bytes{};
  std::vector<StoredSubgroup> subgroups{};  ///< subgroup K is the Kth

  /// The group of the planes of subgroup K: "/subgroup/K/", or "/" in a file of its own. Up to
  /// format 3, the dataset that holds the whole subgroup: "/subgroup/K", or "/extent". In the file
  /// of a node both are below "/rank/R".
  [[nodiscard]] std::string place(std::size_t k) const;
  /// The dataset of the checksums of subgroup K: "/checksum/K", or "/rank/R/checksum/K" in the file
  /// of a node.
  [[nodiscard]] std::string checksum_name(std::size_t k) const;
};

/// The first format with planes. Format 3 and those before it have a dataset (3, N) instead.
constexpr std::int64_t format_of_planes = 4;
/// The first format in which ranks have equal parts of a layer. Before, chunks were dealt
/// otherwise.
constexpr std::int64_t format_of_equal_parts = 7;
[[nodiscard]] constexpr state::Deal deal_of(std::int64_t format) noexcept {
  return format >= format_of_equal_parts ? state::Deal::equal : state::Deal::spread;
}
/// The formats that are written today, with a file for each rank and with one for each node.
constexpr std::int64_t format_of_rank_files = 7;
constexpr std::int64_t format_of_node_files = 8;
/// Returns whether the format has a file for each node. Format 6 was format 5 with such files.
[[nodiscard]] constexpr bool has_node_files(std::int64_t format) noexcept {
  return format == format_of_node_files || format == 6;
}

[[nodiscard]] std::string to_json(Manifest const& manifest);

/// Errors: DataError naming `path` and the field that is missing, of another type or out of range.
///         The manifest that is returned is consistent: every subgroup, in this layout, lies inside
///         its file, and its pieces fill it.
[[nodiscard]] Manifest parse_manifest(std::string const& text, StateLayout const& layout,
                                      std::string const& path);

}  // namespace offstage::checkpoint
