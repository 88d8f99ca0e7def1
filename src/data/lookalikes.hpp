#pragma once

#include <optional>
#include <string>

#include "data/input_file.hpp"

namespace offstage::data {

/// A format whose bytes are no tokens, though every file can be read as some.
struct Lookalike {
  std::string name;    ///< "a NumPy array"
  std::string advice;  ///< how to make tokens of it
  bool is_unpacked{};  ///< open_stream (byte_stream.hpp) reads its contents
};

/// The lookalike that the file's first bytes show: arrays, compressed files, tables, JSON. nullopt:
/// none that is known.
[[nodiscard]] std::optional<Lookalike> find_lookalike(ByteSource const& file);

/// The width of whole numbers that the file seems to hold where it is read as u16: 4 if every
/// second u16 is 0, 8 if three of four are; else 2. Reads up to 64 KiB of the beginning and of the
/// middle. A file of zeros alone has 2.
[[nodiscard]] int seeming_width(ByteSource const& file);

}  // namespace offstage::data
