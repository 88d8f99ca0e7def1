#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/input_file.hpp"
#include "parquet/decoders.hpp"
#include "parquet/footer.hpp"
#include "parquet/thrift.hpp"

namespace offstage::parquet {

/// Gives the entries of a column's chunk one after another: for each value, null or empty list its
/// levels, as Dremel has them (Melnik et al., VLDB 2010).
/// Memory: a page and the dictionary.
/// Errors: Damage; Unread; those of the file.
class Column {
 public:
  /// `file` and `leaf` must outlive this object.
  Column(data::ByteSource const& file, Node const& leaf, Chunk const& chunk);

  struct Entry {
    int depth{};       ///< 0: the first of a row; else which list it goes on with
    int definition{};  ///< how much of the way to the value is there
  };
  [[nodiscard]] bool ends() const noexcept { return left_ == 0; }
  /// The entry that comes next. Errors: Damage where there is none.
  [[nodiscard]] Entry const& peek();
  /// Passes over the next entry, which has no value, or one of a type that JSON lacks.
  void pass();
  /// Takes the next entry's value, which is valid until the next call of any function here.
  [[nodiscard]] Value take();

 private:
  struct PageHeader {
    std::int64_t type{};
    Bytes unpacked{};
    Bytes packed{};
    std::int64_t values{};
    std::int64_t encoding{};
    std::int64_t depths_encoding{};  ///< pages of the first version alone, as the next member
    std::int64_t definitions_encoding{};
    Bytes depths_bytes{};  ///< pages of the second version alone, as the next member
    Bytes definitions_bytes{};
    bool is_packed = true;
    std::int64_t checksum = no_checksum;  ///< CRC-32 of the page as it is in the file
    static constexpr std::int64_t no_checksum = std::int64_t{1} << 40;

    void take(Thrift& in);
  };

  [[nodiscard]] bool has_readable_values() const noexcept {
    return leaf_.type != Type::int96 && leaf_.type != Type::fixed_bytes;
  }
  void read_page();
  [[nodiscard]] PageHeader read_header();
  void end_entry();
  void begin_data(PageHeader const& header, std::vector<std::byte> const& packed);

  data::ByteSource const& file_;
  Node const& leaf_;
  Chunk chunk_;
  Bytes place_{};           ///< place of the next page in the file
  std::int64_t left_{};     ///< entries of the chunk
  std::int64_t in_page_{};  ///< entries left of the page
  std::vector<std::byte> page_;
  std::vector<std::byte> dictionary_bytes_;
  std::vector<Value> dictionary_;
  RunLengths depths_;
  RunLengths definitions_;
  std::unique_ptr<Values> values_;
  Entry entry_;
  bool has_entry_{};
};

}  // namespace offstage::parquet
