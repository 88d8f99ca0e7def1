#include "parquet/footer.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "parquet/damage.hpp"
#include "parquet/thrift.hpp"

namespace offstage::parquet {
namespace {

constexpr Bytes magic_bytes = 4;
constexpr Bytes tail_bytes = 8;  ///< the footer's length, and the magic again
constexpr int deepest_group = 32;

/// A field of the schema as it stands in the file, before its children.
struct Element {
  std::string name;
  std::optional<std::int64_t> type;
  std::int64_t repetition{};
  std::int64_t children{};
  std::int64_t converted = -1;
  std::int64_t logical{};
};

Element read_element(Thrift& in) {
  Element element;
  in.structure([&](Thrift::Field const& field) {
    switch (field.id) {
      case 1:
        element.type = in.integer(field);
        return true;
      case 4:
        element.name = in.text(field);
        return true;
      case 10:
        in.structure(field, [&](Thrift::Field const& which) {
          element.logical = which.id;
          return false;
        });
        return true;
      default:
        return in.take(field,
                       {{3, &element.repetition}, {5, &element.children}, {6, &element.converted}});
    }
  });
  return element;
}

/// Makes the tree of elements that stand depth first.
class Schema {
 public:
  explicit Schema(std::vector<Element> const& elements) : elements_{elements} {}

  [[nodiscard]] Node root() {
    Node root;
    add(root, nullptr, 0);
    if (used_ != elements_.size()) {
      throw Damage{"its schema has fields that are in no group"};
    }
    return root;
  }
  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }

 private:
  void add(Node& node, Node const* parent, int level) {
    if (used_ == elements_.size() || level > deepest_group) {
      throw Damage{"its schema has groups without their fields, or in too many others"};
    }
    Element const& element = elements_[used_++];
    if (element.repetition < 0 || element.repetition > 2 || element.children < 0) {
      throw Damage{"its schema has a field that is neither required, optional nor repeated"};
    }
    node.name = element.name;
    if (parent != nullptr) {
      node.repetition = static_cast<Repetition>(element.repetition);
      node.definition = parent->definition + (node.repetition == Repetition::required ? 0 : 1);
      node.depth = parent->depth + (node.repetition == Repetition::repeated ? 1 : 0);
    }
    node.first_column = columns_;
    bool const is_leaf = parent != nullptr && element.type.has_value();
    if (is_leaf) {
      take_leaf(element, node);
    }
    for (std::int64_t i = 0; i < element.children; ++i) {
      if (is_leaf) {
        throw Damage{"its schema has a column with fields in it"};
      }
      add(node.children.emplace_back(), &node, level + 1);
    }
    constexpr int converted_list = 3;
    constexpr int logical_list = 3;
    node.is_list = (element.converted == converted_list || element.logical == logical_list) &&
                   node.children.size() == 1 &&
                   node.children.front().repetition == Repetition::repeated;
    node.columns = columns_ - node.first_column;
  }

  void take_leaf(Element const& element, Node& node) {
    if (*element.type < 0 || *element.type > static_cast<int>(Type::fixed_bytes)) {
      throw Damage{"its schema has a column of no known type"};
    }
    node.type = static_cast<Type>(*element.type);
    auto const is = [](std::int64_t value, auto const&... texts) {
      return ((value == texts) || ...);
    };
    // UTF8, ENUM and JSON, in either of the two ways to say so.
    node.is_text = is(element.converted, 0, 4, 19) || is(element.logical, 1, 4, 12);
    ++columns_;
  }

  std::vector<Element> const& elements_;
  std::size_t used_{};
  std::size_t columns_{};
};

Chunk read_chunk(Thrift& in, Bytes end) {
  Chunk chunk;
  bool is_elsewhere = false;
  bool is_there = false;
  std::int64_t data = 0;
  std::int64_t dictionary = 0;
  in.structure([&](Thrift::Field const& field) {
    if (field.id == 1) {
      is_elsewhere = !in.text(field).empty();
      return true;
    }
    if (field.id != 3) {
      return false;
    }
    is_there = true;
    in.structure(field, [&](Thrift::Field const& of) {
      return in.take(
          of,
          {{4, &chunk.codec}, {5, &chunk.values}, {7, &chunk.size}, {9, &data}, {11, &dictionary}});
    });
    return true;
  });
  if (is_elsewhere) {
    throw Unread{"has columns in other files"};
  }
  if (!is_there) {
    throw Unread{"has columns that are encrypted"};
  }
  chunk.begin = dictionary > 0 && dictionary < data ? dictionary : data;
  bool const is_inside = chunk.begin >= magic_bytes && chunk.size >= 0 && chunk.begin <= end &&
                         chunk.size <= end - chunk.begin && chunk.values >= 0;
  if (!is_inside && chunk.values != 0) {
    throw Damage{"a column lies outside of it"};
  }
  return chunk;
}

RowGroup read_group(Thrift& in, Bytes end) {
  RowGroup group;
  in.structure([&](Thrift::Field const& field) {
    if (field.id == 1) {
      in.list(field, Kind::structure, [&] { group.chunks.push_back(read_chunk(in, end)); });
      return true;
    }
    return in.take(field, {{3, &group.rows}});
  });
  return group;
}

Footer parse(std::span<std::byte const> bytes, Bytes end) {
  Thrift in{bytes};
  std::vector<Element> elements;
  Footer footer;
  in.structure([&](Thrift::Field const& field) {
    switch (field.id) {
      case 2:
        in.list(field, Kind::structure, [&] { elements.push_back(read_element(in)); });
        return true;
      case 4:
        in.list(field, Kind::structure, [&] { footer.groups.push_back(read_group(in, end)); });
        return true;
      case 8:
        throw Unread{"is encrypted"};
      default:
        return false;
    }
  });
  Schema schema{elements};
  footer.root = schema.root();
  for (RowGroup const& group : footer.groups) {
    bool const good = group.rows >= 0 && group.rows <= INT64_MAX - footer.rows &&
                      group.chunks.size() == schema.columns();
    if (!good) {
      throw Damage{"a row group has not the columns of its schema"};
    }
    footer.rows += group.rows;
  }
  return footer;
}

}  // namespace

Footer read_footer(data::ByteSource const& file) {
  std::array<char, tail_bytes> tail{};
  if (file.size() < magic_bytes + tail_bytes) {
    file.fail("is too short for a Parquet table; it was not copied whole");
  }
  file.read(file.size() - tail_bytes, std::as_writable_bytes(std::span{tail}));
  std::uint32_t length = 0;
  std::memcpy(&length, tail.data(), sizeof length);
  std::string_view const magic{tail.data() + magic_bytes, static_cast<std::size_t>(magic_bytes)};
  if (magic == "PARE") {
    file.fail("is encrypted, which is not read");
  }
  Bytes const end = file.size() - tail_bytes - length;
  if (magic != "PAR1" || end < magic_bytes) {
    file.fail("does not end as a Parquet table does; it was not copied whole");
  }
  std::vector<std::byte> bytes(length);
  file.read(end, bytes);
  try {
    return parse(bytes, end);
  } catch (Damage const& error) {
    file.fail(fmt::format("is damaged in its footer: {}", error.what()));
  } catch (Unread const& error) {
    file.fail(fmt::format("{}, which is not read", error.what()));
  }
}

}  // namespace offstage::parquet
