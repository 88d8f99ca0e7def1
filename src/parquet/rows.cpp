#include "parquet/rows.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <string_view>
#include <vector>

#include "base/printable.hpp"
#include "data/text_documents.hpp"
#include "parquet/columns.hpp"
#include "parquet/damage.hpp"
#include "parquet/footer.hpp"

namespace offstage::parquet {
namespace {

constexpr std::string_view magic = "PAR1";

void put_text(std::string& out, std::string_view text) {
  constexpr unsigned char first_plain = 0x20;
  out += '"';
  for (char const c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < first_plain) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

/// Whether a list's repeated field is a wrapper of its elements, as writers of today have it.
bool wraps_element(Node const& list, Node const& repeated) {
  return repeated.children.size() == 1 && repeated.name != "array" &&
         repeated.name != list.name + "_tuple";
}

class RowStream final : public data::ByteStream {
 public:
  RowStream(std::string const& path, std::string const& key,
            std::optional<std::string> const& column)
      : file_{path, key}, footer_{read_footer(file_)}, is_one_column_{column.has_value()} {
    std::vector<std::string> names;
    for (Node const& field : footer_.root.children) {
      if (field.columns > 0) {
        names.push_back(printable_name(field.name));
        if (!column || field.name == *column) {
          fields_.push_back(&field);
        }
      }
    }
    if (column && fields_.size() != 1) {
      file_.fail(fmt::format("has {} '{}'; its columns are {}; name one by --field",
                             fields_.empty() ? "no column" : "several columns",
                             printable_name(*column), fmt::join(names, ", ")));
    }
    list_leaves(footer_.root);
  }

  [[nodiscard]] std::size_t read(std::span<std::byte> out) override {
    std::size_t made = 0;
    while (made < out.size()) {
      if (used_ == lines_.size() && !make_lines()) {
        break;
      }
      auto const count = std::min(out.size() - made, lines_.size() - used_);
      std::memcpy(out.data() + made, lines_.data() + used_, count);
      made += count;
      used_ += count;
    }
    return made;
  }
  [[nodiscard]] data::InputFile const& file() const override { return file_; }
  /// By rows: what a column's pages take says little about the others.
  [[nodiscard]] Bytes done() const override {
    double const part =
        footer_.rows > 0 ? static_cast<double>(row_) / static_cast<double>(footer_.rows) : 1.0;
    return static_cast<Bytes>(part * static_cast<double>(file_.size()));
  }

 private:
  void list_leaves(Node const& node) {
    if (node.children.empty() && node.columns == 1) {
      leaves_.push_back(&node);
    }
    for (Node const& child : node.children) {
      list_leaves(child);
    }
  }

  /// False at the end of the table.
  [[nodiscard]] bool make_lines() {
    constexpr std::size_t enough = 64 * KiB;
    lines_.clear();
    used_ = 0;
    try {
      while (lines_.size() < enough && begin_group()) {
        put_row();
        ++row_;
        --left_in_group_;
      }
    } catch (Damage const& error) {
      file_.fail(fmt::format("is damaged in column '{}', row {}: {}", column_name(), row_ + 1,
                             error.what()));
    } catch (Unread const& error) {
      file_.fail(fmt::format(
          "{} in column '{}', which is not read; write it anew, with pyarrow for example: "
          "pyarrow.parquet.write_table(pyarrow.parquet.read_table(FILE), NEW)",
          error.what(), column_name()));
    }
    return !lines_.empty();
  }

  [[nodiscard]] std::string column_name() const { return printable_name(leaves_[at_]->name); }

  /// Opens the columns of the next row group if the last one is at its end. False at the end of
  /// all.
  [[nodiscard]] bool begin_group() {
    while (left_in_group_ == 0) {
      if (group_ == footer_.groups.size()) {
        return false;
      }
      RowGroup const& group = footer_.groups[group_++];
      left_in_group_ = group.rows;
      columns_.clear();
      for (std::size_t i = 0; i < leaves_.size(); ++i) {
        columns_.push_back(std::make_unique<Column>(file_, *leaves_[i], group.chunks[i]));
      }
    }
    return true;
  }

  void put_row() {
    begin_ = lines_.size();
    char before = '{';
    for (Node const* const field : fields_) {
      for (std::size_t i = 0; i < field->columns; ++i) {
        if (column(field->first_column + i).peek().depth != 0) {
          throw Damage{"a row begins within a list"};
        }
      }
      lines_ += before;
      put_named(*field);
      before = ',';
    }
    lines_ += fields_.empty() ? "{}\n" : "}\n";
  }

  /// The column, which errors name from now on.
  [[nodiscard]] Column& column(std::size_t number) {
    at_ = number;
    return *columns_[number];
  }
  void pass(Node const& field) {
    for (std::size_t i = 0; i < field.columns; ++i) {
      column(field.first_column + i).pass();
    }
  }

  void put_named(Node const& field) {
    put_text(lines_, field.name);
    lines_ += ':';
    put(field);
  }

  void put(Node const& field) {
    if (field.repetition == Repetition::repeated) {
      put_elements(field, false);
    } else if (field.repetition == Repetition::optional &&
               column(field.first_column).peek().definition < field.definition) {
      pass(field);
      lines_ += "null";
    } else {
      put_content(field);
    }
  }

  /// A repeated field, or its only child of each, which it wraps.
  void put_elements(Node const& field, bool is_wrapper) {
    lines_ += '[';
    if (column(field.first_column).peek().definition < field.definition) {
      pass(field);
    } else {
      for (bool more = true; more;) {
        is_wrapper ? put(field.children.front()) : put_content(field);
        Column& first = column(field.first_column);
        more = !first.ends() && first.peek().depth == field.depth;
        if (more) {
          lines_ += ',';
        }
        if (static_cast<Bytes>(lines_.size() - begin_) > data::TextDocuments::largest_document) {
          throw Damage{"a row is larger than 1 GiB"};
        }
      }
    }
    lines_ += ']';
  }

  void put_content(Node const& field) {
    if (field.children.empty()) {
      put_value(field);
      return;
    }
    if (field.is_list) {
      Node const& repeated = field.children.front();
      put_elements(repeated, wraps_element(field, repeated));
      return;
    }
    char before = '{';
    for (Node const& child : field.children) {
      if (child.columns > 0) {
        lines_ += before;
        put_named(child);
        before = ',';
      }
    }
    lines_ += '}';
  }

  void put_value(Node const& leaf) {
    if (leaf.type == Type::int96 || leaf.type == Type::fixed_bytes) {
      column(leaf.first_column).pass();
      lines_ += "null";
      return;
    }
    Value const value = column(leaf.first_column).take();
    auto const out = std::back_inserter(lines_);
    switch (leaf.type) {
      case Type::boolean:
        lines_ += value.integer != 0 ? "true" : "false";
        break;
      case Type::int32:
      case Type::int64:
        fmt::format_to(out, "{}", value.integer);
        break;
      case Type::float32:
      case Type::float64:
        if (std::isfinite(value.number)) {
          fmt::format_to(out, "{}", value.number);
        } else {
          lines_ += "null";
        }
        break;
      case Type::bytes:
        put_bytes(leaf, value.bytes);
        break;
      case Type::int96:
      case Type::fixed_bytes:
        break;
    }
  }

  void put_bytes(Node const& leaf, std::string_view bytes) {
    if (leaf.is_text || is_one_column_) {
      put_text(lines_, bytes);
    } else {
      lines_ += "null";
    }
  }

  data::InputFile file_;
  Footer footer_;
  bool is_one_column_;
  std::vector<Node const*> fields_;               ///< that are members of the objects
  std::vector<Node const*> leaves_;               ///< by their column's number
  std::vector<std::unique_ptr<Column>> columns_;  ///< of the row group
  std::size_t group_{};                           ///< the next one
  std::int64_t left_in_group_{};
  std::int64_t row_{};
  std::size_t at_{};  ///< the column that is read
  std::string lines_;
  std::size_t used_{};   ///< of `lines_`
  std::size_t begin_{};  ///< of the row in `lines_`
};

}  // namespace

bool is_table(std::string const& path, std::string const& key) {
  data::InputFile const file{path, key};
  std::array<char, magic.size()> first{};
  if (file.size() < static_cast<Bytes>(first.size())) {
    return false;
  }
  file.read(0, std::as_writable_bytes(std::span{first}));
  return std::string_view{first.data(), first.size()} == magic;
}

std::unique_ptr<data::ByteStream> open_rows(std::string const& path, std::string const& key,
                                            std::optional<std::string> const& column) {
  return std::make_unique<RowStream>(path, key, column);
}

}  // namespace offstage::parquet
