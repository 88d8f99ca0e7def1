#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "data/input_file.hpp"

namespace offstage::data {

/// Writes the formats byte by byte, by their descriptions and without Offstage's code.

template <class T>
std::string little_endian(T value) {
  std::string bytes;
  auto rest = static_cast<std::uint64_t>(value);
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    bytes += static_cast<char>(rest & 0xFF);
    rest >>= 8;
  }
  return bytes;
}

template <class T>
std::string array_of(std::vector<T> const& values) {
  std::string bytes;
  for (T const value : values) {
    bytes += little_endian(value);
  }
  return bytes;
}

/// A .idx, right unless a test changes it.
struct Index {
  std::string magic{"MMIDIDX\0", 9};
  std::uint64_t version = 1;
  std::uint8_t type = 8;  ///< u16
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> pointers;
  std::vector<std::int64_t> documents;
  std::uint64_t sequences_said{};
  std::uint64_t documents_said{};

  /// Of these sequences, two bytes a token, one document each.
  explicit Index(std::vector<std::int32_t> sequence_lengths, std::int64_t item_bytes = 2)
      : lengths{std::move(sequence_lengths)},
        documents{0},
        sequences_said{lengths.size()},
        documents_said{lengths.size() + 1} {
    std::int64_t pointer{};
    for (auto const length : lengths) {
      pointers.push_back(pointer);
      pointer += length * item_bytes;
      documents.push_back(documents.back() + 1);
    }
  }
  void set_documents(std::vector<std::int64_t> values) {
    documents = std::move(values);
    documents_said = documents.size();
  }
  [[nodiscard]] std::string bytes() const {
    return magic + little_endian(version) + little_endian(type) + little_endian(sequences_said) +
           little_endian(documents_said) + array_of(lengths) + array_of(pointers) +
           array_of(documents);
  }
};

/// llm.c's header.
inline std::string llmc_header(std::int32_t magic, std::int32_t version, std::int32_t tokens) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = tokens;
  return array_of(header);
}

/// Bytes in memory for a parser.
class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::string bytes) : bytes_{std::move(bytes)} {}
  [[nodiscard]] Bytes size() const override { return static_cast<Bytes>(bytes_.size()); }
  [[nodiscard]] std::string name() const override { return "data.train=memory"; }
  void read(Bytes offset, std::span<std::byte> out) const override {
    auto const size = static_cast<Bytes>(out.size());
    require(offset >= 0 && size <= this->size() && offset <= this->size() - size,
            "MemorySource: read beyond the end");
    if (!out.empty()) {
      std::memcpy(out.data(), bytes_.data() + offset, out.size());
    }
  }

 private:
  std::string bytes_;
};

/// The message of the DataError that `work` throws.
template <class Work>
std::string data_error(Work const& work) {
  try {
    work();
  } catch (DataError const& error) {
    return error.what();
  }
  return "no DataError";
}

/// The message of the UsageError that `work` throws.
template <class Work>
std::string usage_error(Work const& work) {
  try {
    work();
  } catch (UsageError const& error) {
    return error.what();
  }
  return "no UsageError";
}

/// A Megatron pair of u16 with these documents in a TemporaryDirectory; its path.
template <class Folder>
std::string write_documents(Folder const& folder, std::string const& name,
                            std::vector<std::string> const& documents) {
  std::vector<std::uint16_t> tokens;
  std::vector<std::int32_t> lengths;
  for (std::string const& document : documents) {
    tokens.insert(tokens.end(), document.begin(), document.end());
    lengths.push_back(static_cast<std::int32_t>(document.size()));
  }
  folder.write(name + ".idx", Index{lengths}.bytes());
  return folder.write(name + ".bin", array_of(tokens));
}

}  // namespace offstage::data
