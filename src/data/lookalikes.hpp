#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "data/input_file.hpp"

namespace offstage::data {

/// A format whose bytes are no tokens and no text, though every file can be read as some.
struct Lookalike {
  enum class Kind { json, json_array, other };
  Kind kind = Kind::other;
  std::string name;    ///< "a NumPy array"
  std::string advice;  ///< how to make tokens of it, or text
};

/// The lookalike that the file's first bytes show: arrays, compressed files, tables, JSON. With
/// `as_text` also UTF-16, UTF-32 and all else that has a byte of 0, which no text has. nullopt:
/// none that is known.
[[nodiscard]] std::optional<Lookalike> find_lookalike(ByteSource const& file, bool as_text);

/// The lookalike of a text, whose first bytes `first` are, unpacked: also UTF-16, UTF-32 and all
/// else that has a byte of 0. The advice is for who packs texts.
[[nodiscard]] std::optional<Lookalike> find_text_lookalike(std::string_view first);

/// First bytes that these functions look at.
constexpr std::size_t lookalike_bytes = 4096;

/// The width of whole numbers that the file seems to hold where it is read as u16: 4 if every
/// second u16 is 0, 8 if three of four are; else 2. Reads up to 64 KiB of the beginning and of the
/// middle. A file of zeros alone has 2.
[[nodiscard]] int seeming_width(ByteSource const& file);

}  // namespace offstage::data
