#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "state/shard.hpp"

namespace offstage::checkpoint {

/// A file that holds one subgroup's state: see README.md.
struct ExtentFile {
  std::string name;  ///< without directory
  Bytes bytes{};
  std::int64_t dataset_elements{};  ///< of extent_dataset, 3 N or more
};

/// Where one subgroup's state lies.
struct StoredSubgroup {
  Bytes offset{};            ///< of p's first byte in its file
  std::int64_t elements{};   ///< N; m and v follow, N elements each
  std::uint64_t checksum{};  ///< of the array of chunk checksums
  std::vector<state::Piece> pieces;
  std::optional<ExtentFile> own_file{};  ///< none: it lies in the rank file

  /// Of p, m and v together.
  [[nodiscard]] std::size_t chunks() const;
  /// The dataset that holds it, of the subgroup number K of a rank.
  [[nodiscard]] std::string dataset(std::size_t k) const;
};

/// What one rank saved, in its own file and in extent files; stands beside its file as JSON.
struct Manifest {
  int rank{};
  int ranks{};
  std::string file;  ///< without directory
  Bytes file_bytes{};
  std::vector<StoredSubgroup> subgroups{};  ///< K counts them
};

/// "/subgroup/K" and "/checksum/K".
[[nodiscard]] std::string dataset_name(std::size_t subgroup);
[[nodiscard]] std::string checksum_name(std::size_t subgroup);

[[nodiscard]] std::string to_json(Manifest const& manifest);

/// Errors: DataError naming `path` and the field that is missing, of another type or out of range.
///         What it returns is consistent: every subgroup lies inside its file, pieces fill it.
[[nodiscard]] Manifest parse_manifest(std::string const& text, std::string const& path);

}  // namespace offstage::checkpoint
