#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "data/input_file.hpp"

namespace offstage::parquet {

/// Physical types, by their numbers in files.
enum class Type : std::uint8_t {
  boolean,
  int32,
  int64,
  int96,
  float32,
  float64,
  bytes,
  fixed_bytes,
};

enum class Repetition : std::uint8_t { required, optional, repeated };

/// A field of the schema: a leaf, whose values are a column, or a group of others.
struct Node {
  std::string name;
  Repetition repetition{};
  bool is_text{};              ///< leaf: a text, which is bytes of UTF-8
  bool is_list{};              ///< group: its only child is the list's elements
  Type type{};                 ///< leaf
  std::vector<Node> children;  ///< empty: it is a leaf
  /// Levels of a value that is there, as Dremel counts them: how many fields on the way to it are
  /// optional or repeated, and how many repeated.
  int definition{};
  int depth{};
  std::size_t first_column{};  ///< number of the first of its leaves
  std::size_t columns{};       ///< number of its leaves; 0 for a group without any
};

/// A column's part of a row group.
struct Chunk {
  std::int64_t codec{};
  std::int64_t values{};  ///< with those that are null
  Bytes begin{};          ///< in the file
  Bytes size{};
};

struct RowGroup {
  std::int64_t rows{};
  std::vector<Chunk> chunks;  ///< one for each column
};

struct Footer {
  Node root;
  std::int64_t rows{};
  std::vector<RowGroup> groups;
};

/// The end of a Parquet file, which says where all else is. Source:
/// github.com/apache/parquet-format.
/// Memory: some times the footer, which the writer's row groups and columns make large.
/// Errors: DataError naming the file: no Parquet file, damaged, encrypted, or with columns in other
///         files; those of `file`.
[[nodiscard]] Footer read_footer(data::ByteSource const& file);

}  // namespace offstage::parquet
