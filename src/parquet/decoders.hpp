#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "parquet/footer.hpp"

namespace offstage::parquet {

/// Integers of `width` bits, at most 32, in runs of one value or packed in groups of eight.
/// Errors: Damage.
class RunLengths {
 public:
  /// No integers.
  RunLengths() = default;
  /// `bytes` must outlive this object.
  RunLengths(std::span<std::byte const> bytes, int width);

  [[nodiscard]] std::uint32_t next();

 private:
  std::span<std::byte const> bytes_;
  int width_{};
  std::uint64_t left_{};  ///< values of this run
  bool is_packed_{};
  std::uint32_t value_{};  ///< value of a run that is not packed
  std::uint64_t bit_{};    ///< the next value's place in `bytes_` in a run that is
};

/// Integers of 64 bits as differences in blocks (DELTA_BINARY_PACKED).
/// Errors: Damage.
class Differences {
 public:
  /// `bytes` must outlive this object. They say themselves how many values there are, at most
  /// `most`.
  Differences(std::span<std::byte const> bytes, std::int64_t most);

  [[nodiscard]] std::int64_t next();
  [[nodiscard]] std::uint64_t left() const noexcept { return left_; }
  /// Where the bytes of all values end, when none is left.
  [[nodiscard]] std::size_t end() const noexcept { return begin_ + packed_bytes(); }

 private:
  void begin_block();
  void begin_part();
  [[nodiscard]] std::size_t packed_bytes() const noexcept;

  std::span<std::byte const> bytes_;
  std::uint64_t left_{};
  std::uint64_t value_{};
  std::uint64_t least_{};
  std::uint64_t part_values_{};  ///< in a miniblock
  std::uint64_t parts_{};        ///< miniblocks in a block
  std::vector<std::uint8_t> widths_;
  std::uint64_t part_{};     ///< number in the block; `parts_` at its end
  std::uint64_t in_part_{};  ///< values of the part that were given
  std::size_t begin_{};      ///< place of the part's bits
  int width_{};
  bool is_first_ = true;
};

/// One value; which member holds it, the column's type says. `bytes` is valid until the next value.
struct Value {
  std::int64_t integer{};  ///< 0 and 1 for a boolean
  double number{};
  std::string_view bytes{};
};

/// The values of a page, without those that are null.
class Values {
 public:
  virtual ~Values() = default;
  /// Errors: Damage if there is none.
  [[nodiscard]] virtual Value next() = 0;
};

/// The values of a data page, `most` at most. `bytes` and `dictionary` must outlive them.
/// Errors: Unread for an encoding or type that is not read; Damage.
[[nodiscard]] std::unique_ptr<Values> make_values(Type type, std::int64_t encoding,
                                                  std::span<std::byte const> bytes,
                                                  std::int64_t most,
                                                  std::vector<Value> const& dictionary);

/// The values of a dictionary page, `count` of them. `bytes` must outlive them.
[[nodiscard]] std::vector<Value> read_dictionary(Type type, std::span<std::byte const> bytes,
                                                 std::int64_t count);

}  // namespace offstage::parquet
