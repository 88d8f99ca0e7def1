#include "huggingface/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/printable.hpp"
#include "huggingface/json_text.hpp"

namespace offstage::huggingface {
namespace {

constexpr Bytes length_bytes = 8;
constexpr Bytes largest_header = 100'000'000;

/// Takes a header's JSON event by event, so that a hostile one of 100 MB costs no more memory than
/// the tensors that it names, and no key can come twice unseen.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(std::string const& path) : path_{path} {}

  [[nodiscard]] TensorEntries take() { return std::move(tensors_); }

  bool null() override { unexpected(); }
  bool boolean(bool /*value*/) override { unexpected(); }
  bool number_float(number_float_t /*value*/, string_t const& /*text*/) override { unexpected(); }
  bool binary(binary_t& /*value*/) override { unexpected(); }
  bool number_integer(number_integer_t /*value*/) override { unexpected(); }

  bool number_unsigned(number_unsigned_t value) override {
    if (where_ != Where::array) {
      unexpected();
    }
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      unexpected();
    }
    if (numbers_.size() >= most_dimensions) {
      throw wrong(fmt::format("has a {} of more than {} numbers", field_, most_dimensions));
    }
    numbers_.push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (where_ == Where::metadata) {
      return true;
    }
    if (where_ != Where::tensor || field_ != "dtype") {
      unexpected();
    }
    tensor_.dtype = value;
    return true;
  }

  bool start_object(std::size_t /*elements*/) override {
    if (where_ == Where::outside) {
      where_ = Where::file;
    } else if (where_ == Where::file) {
      where_ = in_metadata_ ? Where::metadata : Where::tensor;
      fields_.clear();
      tensor_ = TensorEntry{};
      tensor_.name = name_;
    } else {
      unexpected();
    }
    return true;
  }

  bool key(string_t& value) override {
    if (where_ == Where::file) {
      begin_entry(value);
      return true;
    }
    if (!fields_.insert(value).second) {
      throw wrong(fmt::format("has '{}' twice", printable_name(value)));
    }
    if (where_ == Where::tensor && value != "dtype" && value != "shape" &&
        value != "data_offsets") {
      throw wrong(fmt::format("has the unknown field '{}'", printable_name(value)));
    }
    field_ = value;
    return true;
  }

  bool end_object() override {
    if (where_ == Where::tensor) {
      end_tensor();
      where_ = Where::file;
    } else {
      where_ = where_ == Where::metadata ? Where::file : Where::outside;
    }
    return true;
  }

  bool start_array(std::size_t /*elements*/) override {
    if (where_ != Where::tensor || field_ == "dtype") {
      unexpected();
    }
    where_ = Where::array;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    where_ = Where::tensor;
    if (field_ == "shape") {
      tensor_.shape = numbers_;
      return true;
    }
    if (numbers_.size() != 2) {
      throw wrong("has data_offsets that are not two numbers");
    }
    tensor_.begin = numbers_[0];
    tensor_.end = numbers_[1];
    return true;
  }

  bool parse_error(std::size_t position, std::string const& /*token*/,
                   nlohmann::json::exception const& error) override {
    throw DataError{
        fmt::format("{}: its header {}", path_, describe_json_mistake(position, error.what()))};
  }

 private:
  enum class Where { outside, file, metadata, tensor, array };

  void begin_entry(std::string const& name) {
    in_metadata_ = name == "__metadata__";
    bool const again = in_metadata_ ? std::exchange(metadata_seen_, true) : tensors_.contains(name);
    name_ = name;
    if (again) {
      throw wrong("is there twice");
    }
  }

  void end_tensor() {
    for (char const* field : {"dtype", "shape", "data_offsets"}) {
      if (!fields_.contains(field)) {
        throw wrong(fmt::format("has no {}", field));
      }
    }
    tensors_.emplace(name_, std::move(tensor_));
  }

  [[nodiscard]] DataError wrong(std::string const& what) const {
    return DataError{fmt::format("{}: tensor '{}' {}", path_, printable_name(name_), what)};
  }

  [[noreturn]] void unexpected() const {
    switch (where_) {
      case Where::outside:
        throw DataError{path_ + ": its header is no JSON object"};
      case Where::metadata:
        throw DataError{path_ + ": __metadata__ must be a map of strings to strings"};
      case Where::file:
        if (in_metadata_) {
          throw DataError{path_ + ": __metadata__ must be a map of strings to strings"};
        }
        throw wrong("must be an object of dtype, shape and data_offsets");
      case Where::tensor:
        throw wrong(fmt::format("has a {} of the wrong kind", field_));
      case Where::array:
        break;
    }
    throw wrong(
        fmt::format("has a {} that is no list of whole numbers from 0 to 2^63 - 1", field_));
  }

  std::string const& path_;
  TensorEntries tensors_;
  Where where_ = Where::outside;
  bool in_metadata_ = false;
  bool metadata_seen_ = false;
  std::string name_;
  std::string field_;
  std::set<std::string> fields_;
  TensorEntry tensor_;
  std::vector<std::int64_t> numbers_;
};

/// The bytes that dtype and shape ask for. Errors: DataError.
Bytes bytes_of(TensorEntry const& tensor, std::string const& path) {
  std::int64_t const bits = bits_of(tensor.dtype);
  if (bits == 0) {
    throw DataError{fmt::format("{}: tensor '{}' has the unknown dtype '{}'", path,
                                printable_name(tensor.name), printable_name(tensor.dtype))};
  }
  bool const empty = std::ranges::find(tensor.shape, 0) != tensor.shape.end();
  std::int64_t elements = empty ? 0 : 1;
  for (std::int64_t const length : tensor.shape) {
    if (length != 0 && elements > std::numeric_limits<std::int64_t>::max() / 64 / length) {
      throw DataError{fmt::format("{}: tensor '{}' has a shape {} of more than 2^57 elements", path,
                                  printable_name(tensor.name), shape_text(tensor.shape))};
    }
    elements *= length;
  }
  if (elements * bits % 8 != 0) {
    throw DataError{fmt::format("{}: tensor '{}', {} {}, fills no whole number of bytes", path,
                                printable_name(tensor.name), tensor.dtype,
                                shape_text(tensor.shape))};
  }
  return elements * bits / 8;
}

/// Every byte behind the header belongs to one tensor. Errors: DataError.
void require_no_gaps(TensorEntries const& tensors, Bytes buffer_bytes, std::string const& path) {
  std::vector<TensorEntry const*> in_order;
  in_order.reserve(tensors.size());
  for (auto const& [name, tensor] : tensors) {
    in_order.push_back(&tensor);
  }
  std::ranges::sort(in_order, {}, [](TensorEntry const* t) { return std::pair{t->begin, t->end}; });
  Bytes reached = 0;
  for (TensorEntry const* const tensor : in_order) {
    if (tensor->begin != reached) {
      throw DataError{fmt::format(
          "{}: tensor '{}' begins at {} of the buffer, but the one before ends at {}: {}", path,
          printable_name(tensor->name), tensor->begin, reached,
          tensor->begin < reached ? "they overlap" : "there is a hole")};
    }
    reached = tensor->end;
  }
  if (reached != buffer_bytes) {
    throw DataError{
        fmt::format("{}: its tensors take {} bytes, but {} follow the header; the file is {}", path,
                    reached, buffer_bytes, buffer_bytes < reached ? "cut short" : "too long")};
  }
}

std::string read_header(File const& file) {
  Bytes const size = file.size();
  if (size < length_bytes) {
    throw DataError{
        fmt::format("{}: is no safetensors file: it has {} bytes, and 8 of length come "
                    "first",
                    file.path(), size)};
  }
  std::uint64_t length = 0;
  file.read_at(0, std::as_writable_bytes(std::span{&length, 1}));
  if (length > static_cast<std::uint64_t>(largest_header)) {
    throw DataError{fmt::format(
        "{}: is no safetensors file: its header would have {} bytes, at most {} are allowed",
        file.path(), length, largest_header)};
  }
  if (static_cast<Bytes>(length) > size - length_bytes) {
    throw DataError{
        fmt::format("{}: its header has {} bytes, but only {} follow; the file is cut "
                    "short",
                    file.path(), length, size - length_bytes)};
  }
  std::string header(length, '\0');
  file.read_at(length_bytes, std::as_writable_bytes(std::span{header}));
  return header;
}

}  // namespace

TensorEntries parse_header(std::string_view json, Bytes buffer_bytes, std::string const& path) {
  if (!json.starts_with('{')) {
    throw DataError{path + ": is no safetensors file: its header does not begin with '{'"};
  }
  HeaderReader reader{path};
  nlohmann::json::sax_parse(json, &reader);
  auto tensors = reader.take();
  for (auto const& [name, tensor] : tensors) {
    if (tensor.begin > tensor.end || tensor.end > buffer_bytes ||
        tensor.end - tensor.begin != bytes_of(tensor, path)) {
      throw DataError{fmt::format(
          "{}: tensor '{}', {} {}, takes {} bytes, but its data_offsets are {} and {} of a buffer "
          "of {} bytes{}",
          path, printable_name(name), printable_name(tensor.dtype), shape_text(tensor.shape),
          bytes_of(tensor, path), tensor.begin, tensor.end, buffer_bytes,
          tensor.end > buffer_bytes ? "; the file is cut short" : "")};
    }
  }
  require_no_gaps(tensors, buffer_bytes, path);
  for (auto& [name, tensor] : tensors) {
    tensor.begin += length_bytes + static_cast<Bytes>(json.size());
    tensor.end += length_bytes + static_cast<Bytes>(json.size());
  }
  return tensors;
}

TensorEntries read_safetensors(File const& file) {
  std::string const header = read_header(file);
  return parse_header(header, file.size() - length_bytes - static_cast<Bytes>(header.size()),
                      file.path());
}

}  // namespace offstage::huggingface
