#include "parquet/columns.hpp"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <utility>

#include "parquet/thrift.hpp"
#include "parquet/unpack.hpp"

namespace offstage::parquet {
namespace {

enum PageType : std::uint8_t { data_page = 0, dictionary_page = 2, second_data_page = 3 };

constexpr Bytes largest_page = GiB;
constexpr Bytes largest_header = 64 * MiB;
constexpr std::int64_t most_values = std::int64_t{1} << 28;
constexpr int runs_encoding = 3;

int width_of(int largest) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(largest)));
}

/// CRC-32, as headers have it: in a signed number.
std::int32_t crc_of(std::span<std::byte const> bytes) {
  auto const* const begin = reinterpret_cast<Bytef const*>(bytes.data());
  return static_cast<std::int32_t>(crc32_z(0, begin, bytes.size()));
}

}  // namespace

Column::Column(data::ByteSource const& file, Node const& leaf, Chunk const& chunk)
    : file_{file}, leaf_{leaf}, chunk_{chunk}, place_{chunk.begin}, left_{chunk.values} {}

void Column::PageHeader::take(Thrift& in) {
  auto const take_first = [&](Thrift::Field const& field) {
    return in.take(
        field, {{1, &values}, {2, &encoding}, {3, &definitions_encoding}, {4, &depths_encoding}});
  };
  auto const take_dictionary = [&](Thrift::Field const& field) {
    return in.take(field, {{1, &values}});
  };
  auto const take_second = [&](Thrift::Field const& field) {
    constexpr int packed_field = 7;
    if (field.id == packed_field) {
      is_packed = in.truth(field);
      return true;
    }
    return in.take(field,
                   {{1, &values}, {4, &encoding}, {5, &definitions_bytes}, {6, &depths_bytes}});
  };
  in.structure([&](Thrift::Field const& field) {
    switch (field.id) {
      case 5:
        in.structure(field, take_first);
        return true;
      case 7:
        in.structure(field, take_dictionary);
        return true;
      case 8:
        in.structure(field, take_second);
        return true;
      default:
        return in.take(field, {{1, &type}, {2, &unpacked}, {3, &packed}, {4, &checksum}});
    }
  });
}

/// A header says nothing of its size. It may hold the least and the largest text of its page.
Column::PageHeader Column::read_header() {
  constexpr Bytes usual = 4 * KiB;
  Bytes const end = chunk_.begin + chunk_.size;
  for (Bytes size = std::min(usual, end - place_);; size = std::min(8 * size, end - place_)) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(size));
    file_.read(place_, bytes);
    Thrift in{bytes};
    try {
      PageHeader header;
      header.take(in);
      place_ += static_cast<Bytes>(in.used());
      return header;
    } catch (Cut const&) {
      if (size >= std::min(end - place_, largest_header)) {
        throw Damage{"its pages have fewer values than its chunk says"};
      }
    }
  }
}

void Column::read_page() {
  auto const header = read_header();
  bool const good = header.packed >= 0 && header.packed <= chunk_.begin + chunk_.size - place_ &&
                    header.unpacked >= 0 && header.unpacked <= largest_page && header.values >= 0 &&
                    header.values <= most_values;
  if (!good) {
    throw Damage{"a page has a size or a number of values that cannot be"};
  }
  std::vector<std::byte> packed(static_cast<std::size_t>(header.packed));
  file_.read(place_, packed);
  place_ += header.packed;
  if (header.checksum != PageHeader::no_checksum && crc_of(packed) != header.checksum) {
    throw Damage{"a page does not have the checksum that its header says"};
  }
  if (header.type == dictionary_page && has_readable_values()) {
    dictionary_bytes_.resize(static_cast<std::size_t>(header.unpacked));
    unpack(chunk_.codec, packed, dictionary_bytes_);
    dictionary_ = read_dictionary(leaf_.type, dictionary_bytes_, header.values);
  } else if (header.type == data_page || header.type == second_data_page) {
    begin_data(header, packed);
  }  // else an index, which is passed over
}

void Column::begin_data(PageHeader const& header, std::vector<std::byte> const& packed) {
  page_.resize(static_cast<std::size_t>(header.unpacked));
  bool const second = header.type == second_data_page;
  if (second && (header.depths_bytes < 0 || header.definitions_bytes < 0 ||
                 header.depths_bytes > header.packed ||
                 header.definitions_bytes > header.packed - header.depths_bytes ||
                 header.definitions_bytes > header.unpacked - header.depths_bytes)) {
    throw Damage{"a page has more levels than bytes"};
  }
  Bytes const levels = second ? header.depths_bytes + header.definitions_bytes : 0;
  // Levels of the second version are not packed.
  std::copy_n(packed.begin(), levels, page_.begin());
  unpack(header.is_packed ? chunk_.codec : 0,
         std::span{packed}.subspan(static_cast<std::size_t>(levels)),
         std::span{page_}.subspan(static_cast<std::size_t>(levels)));
  Thrift in{page_};
  auto const take_levels = [&](int largest, std::int64_t encoding, Bytes bytes) -> RunLengths {
    if (largest == 0) {
      return {};
    }
    if (!second && encoding != runs_encoding) {
      throw Unread{"has levels in an old encoding"};
    }
    if (!second) {
      std::uint32_t size = 0;
      std::memcpy(&size, in.take(sizeof size).data(), sizeof size);
      bytes = size;
    }
    return {in.take(static_cast<std::uint64_t>(bytes)), width_of(largest)};
  };
  depths_ = take_levels(leaf_.depth, header.depths_encoding, header.depths_bytes);
  definitions_ =
      take_levels(leaf_.definition, header.definitions_encoding, header.definitions_bytes);
  if (has_readable_values()) {
    values_ = make_values(leaf_.type, header.encoding, std::span{page_}.subspan(in.used()),
                          header.values, dictionary_);
  }
  in_page_ = header.values;
}

Column::Entry const& Column::peek() {
  if (has_entry_) {
    return entry_;
  }
  if (left_ == 0) {
    throw Damage{"it has fewer values than its row group has rows"};
  }
  while (in_page_ == 0) {
    read_page();
  }
  entry_ = {leaf_.depth > 0 ? static_cast<int>(depths_.next()) : 0,
            leaf_.definition > 0 ? static_cast<int>(definitions_.next()) : 0};
  if (entry_.depth > leaf_.depth || entry_.definition > leaf_.definition) {
    throw Damage{"it has levels beyond those of its schema"};
  }
  has_entry_ = true;
  return entry_;
}

void Column::end_entry() {
  has_entry_ = false;
  --in_page_;
  --left_;
}

void Column::pass() {
  if (peek().definition == leaf_.definition && has_readable_values()) {
    throw Damage{"its levels contradict those of another column"};
  }
  end_entry();
}

Value Column::take() {
  if (peek().definition != leaf_.definition) {
    throw Damage{"its levels contradict those of another column"};
  }
  end_entry();
  return values_->next();
}

}  // namespace offstage::parquet
