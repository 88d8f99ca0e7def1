#include "huggingface/torch_archive.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "base/error.hpp"
#include "base/printable.hpp"
#include "huggingface/state_dict.hpp"

namespace offstage::huggingface {
namespace {

constexpr std::string_view local_sign = "PK\3\4";
constexpr std::string_view entry_sign = "PK\1\2";
constexpr std::string_view end_sign = "PK\5\6";
constexpr std::string_view wide_end_sign = "PK\6\6";
constexpr std::string_view wide_locator_sign = "PK\6\7";
constexpr Bytes local_bytes = 30;
constexpr Bytes entry_bytes = 46;
constexpr Bytes end_bytes = 22;
constexpr Bytes wide_end_bytes = 56;
constexpr Bytes wide_locator_bytes = 20;
constexpr Bytes longest_comment = 65535;
constexpr std::uint16_t wide_field = 1;
constexpr std::uint32_t in_wide_field = 0xffffffff;
/// 100,000 tensors take some 10 MB of each.
constexpr Bytes largest_directory = 16 * MiB;
constexpr Bytes largest_pickle = 16 * MiB;

/// A file in the archive.
struct Record {
  Bytes begin{};
  Bytes end{};
};

template <class T>
T number_at(std::string_view bytes, std::size_t at) {
  T number;
  std::memcpy(&number, bytes.substr(at, sizeof(T)).data(), sizeof(T));
  return number;
}

class Archive {
 public:
  explicit Archive(File const& file) : file_{file} {
    std::string const directory = read_directory();
    for (std::string_view rest = directory; !rest.empty();) {
      rest.remove_prefix(enter(rest));
    }
  }

  /// Errors: DataError if it is not there.
  [[nodiscard]] Record const& find(std::string const& name) const {
    auto const found = records_.find(name);
    if (found == records_.end()) {
      refuse(fmt::format("has no record '{}'", printable_name(name)));
    }
    return found->second;
  }
  [[nodiscard]] bool contains(std::string const& name) const { return records_.contains(name); }
  /// The directory in it: a name with a slash at the end. Errors: DataError if it has no pickle.
  [[nodiscard]] std::string directory() const {
    constexpr std::string_view pickle = "/data.pkl";
    for (auto const& [name, record] : records_) {
      if (name.ends_with(pickle) && name.find('/') == name.size() - pickle.size()) {
        return name.substr(0, name.size() - pickle.size() + 1);
      }
    }
    refuse("is no file of torch.save: it has no data.pkl");
  }
  [[nodiscard]] std::string text_of(std::string const& name, Bytes limit) const {
    Record const& record = find(name);
    if (record.end - record.begin > limit) {
      refuse(fmt::format("has a record '{}' of {}; at most {} are read", printable_name(name),
                         format_bytes(record.end - record.begin), format_bytes(limit)));
    }
    return read(record.begin, record.end - record.begin);
  }

  [[noreturn]] void refuse(std::string const& what) const {
    throw DataError{fmt::format("{}: {}", file_.path(), what)};
  }

 private:
  [[noreturn]] void refuse_damage(std::string const& what) const {
    refuse("is damaged or cut short: " + what);
  }

  /// Errors: DataError if the file has no such bytes.
  [[nodiscard]] std::string read(Bytes begin, Bytes size) const {
    if (begin < 0 || size < 0 || begin > file_.size() || size > file_.size() - begin) {
      refuse_damage("a part of it lies beyond its end");
    }
    std::string bytes(static_cast<std::size_t>(size), '\0');
    file_.read_at(begin, std::as_writable_bytes(std::span{bytes}));
    return bytes;
  }

  [[nodiscard]] std::string read_directory() const {
    Bytes const tail_bytes = std::min(file_.size(), end_bytes + longest_comment);
    std::string const tail = read(file_.size() - tail_bytes, tail_bytes);
    auto const at = tail.rfind(end_sign);
    if (at == std::string::npos || tail.size() - at < static_cast<std::size_t>(end_bytes)) {
      refuse_damage("it has no directory at its end");
    }
    std::string_view const end = std::string_view{tail}.substr(at);
    Bytes size = number_at<std::uint32_t>(end, 12);
    Bytes begin = number_at<std::uint32_t>(end, 16);
    Bytes const locator_at =
        file_.size() - tail_bytes + static_cast<Bytes>(at) - wide_locator_bytes;
    if (locator_at >= 0) {
      std::string const locator = read(locator_at, wide_locator_bytes);
      if (locator.starts_with(wide_locator_sign)) {
        std::string const wide = read(number_at<Bytes>(locator, 8), wide_end_bytes);
        if (!wide.starts_with(wide_end_sign)) {
          refuse_damage("its directory is not where its end says");
        }
        size = number_at<Bytes>(wide, 40);
        begin = number_at<Bytes>(wide, 48);
      }
    }
    if (size > largest_directory) {
      refuse(fmt::format("has a directory of {}; at most {} are read", format_bytes(size),
                         format_bytes(largest_directory)));
    }
    return read(begin, size);
  }

  /// The entry at the front of the directory. Returns the bytes that it takes.
  std::size_t enter(std::string_view rest) {
    auto const fixed = static_cast<std::size_t>(entry_bytes);
    if (rest.size() < fixed || !rest.starts_with(entry_sign)) {
      refuse_damage("its directory is not where its end says");
    }
    std::size_t const name_size = number_at<std::uint16_t>(rest, 28);
    std::size_t const extra_size = number_at<std::uint16_t>(rest, 30);
    std::size_t const taken = fixed + name_size + extra_size + number_at<std::uint16_t>(rest, 32);
    if (taken > rest.size()) {
      refuse_damage("its directory ends inside an entry");
    }
    std::string const name{rest.substr(fixed, name_size)};
    bool const encrypted = (number_at<std::uint16_t>(rest, 8) & 1U) != 0;
    if (encrypted || number_at<std::uint16_t>(rest, 10) != 0) {
      refuse(fmt::format("has '{}' compressed or encrypted, which torch.save does not do",
                         printable_name(name)));
    }
    Bytes size = number_at<std::uint32_t>(rest, 24);
    Bytes packed_size = 0;
    Bytes begin = number_at<std::uint32_t>(rest, 42);
    widen(rest.substr(fixed + name_size, extra_size),
          {number_at<std::uint32_t>(rest, 24) == in_wide_field ? &size : nullptr,
           number_at<std::uint32_t>(rest, 20) == in_wide_field ? &packed_size : nullptr,
           number_at<std::uint32_t>(rest, 42) == in_wide_field ? &begin : nullptr});
    std::string const local = read(begin, local_bytes);
    if (!local.starts_with(local_sign)) {
      refuse_damage(fmt::format("'{}' is not where its directory says", printable_name(name)));
    }
    begin +=
        local_bytes + number_at<std::uint16_t>(local, 26) + number_at<std::uint16_t>(local, 28);
    if (size < 0 || size > file_.size() || begin > file_.size() - size) {
      refuse_damage(fmt::format("'{}' would end beyond it", printable_name(name)));
    }
    if (!records_.emplace(name, Record{begin, begin + size}).second) {
      refuse_damage(fmt::format("it has '{}' twice", printable_name(name)));
    }
    return taken;
  }

  /// Numbers of more than 32 bits stand one behind the other in an entry's field for them.
  void widen(std::string_view extra, std::array<Bytes*, 3> numbers) const {
    while (extra.size() >= 4) {
      auto const kind = number_at<std::uint16_t>(extra, 0);
      auto field = extra.substr(4, number_at<std::uint16_t>(extra, 2));
      extra.remove_prefix(4 + field.size());
      if (kind != wide_field) {
        continue;
      }
      for (Bytes* const number : numbers) {
        if (number != nullptr) {
          if (field.size() < sizeof(Bytes)) {
            refuse_damage("its directory lacks a size");
          }
          *number = number_at<Bytes>(field, 0);
          field.remove_prefix(sizeof(Bytes));
        }
      }
      return;
    }
  }

  File const& file_;
  std::map<std::string, Record> records_;
};

TensorEntry entry_of(std::string const& name, PickledTensor const& tensor, Record const& record,
                     Archive const& archive) {
  std::int64_t elements = 1;
  for (std::int64_t const length : tensor.shape) {
    elements *= length;
  }
  Bytes const width = bits_of(tensor.dtype) / 8;
  if ((record.end - record.begin) / width < tensor.first + elements) {
    archive.refuse(fmt::format("tensor '{}', {} {}, lies beyond the {} of its record '{}'",
                               printable_name(name), tensor.dtype, shape_text(tensor.shape),
                               format_bytes(record.end - record.begin),
                               printable_name(tensor.record)));
  }
  Bytes const begin = record.begin + width * tensor.first;
  return {.name = name,
          .dtype = tensor.dtype,
          .shape = tensor.shape,
          .begin = begin,
          .end = begin + width * elements};
}

}  // namespace

bool is_archive(std::string_view beginning) {
  return beginning.starts_with(local_sign);
}

TensorEntries read_torch_archive(File const& file) {
  Archive const archive{file};
  std::string const directory = archive.directory();
  if (std::string const order = directory + "byteorder";
      archive.contains(order) && archive.text_of(order, KiB) != "little") {
    archive.refuse("was written on a big-endian machine; load and save it on another");
  }
  std::string const pickle = archive.text_of(directory + "data.pkl", largest_pickle);
  TensorEntries tensors;
  for (auto const& [name, tensor] : read_state_dict(pickle, file.path())) {
    auto const& record = archive.find(directory + "data/" + tensor.record);
    tensors.emplace(name, entry_of(name, tensor, record, archive));
  }
  return tensors;
}

}  // namespace offstage::huggingface
