#include "data/token_source.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/error.hpp"
#include "base/random.hpp"

namespace offstage::data {
namespace {

constexpr std::int64_t byte_tokens = 256;

/// Closes on the way out; the mapping outlives the descriptor. Opening a pipe must not block: it is
/// refused by name.
class Descriptor {
 public:
  explicit Descriptor(std::string const& path)
      : value_{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)} {}
  ~Descriptor() {
    if (value_ >= 0) {
      close(value_);
    }
  }
  Descriptor(Descriptor const&) = delete;
  Descriptor& operator=(Descriptor const&) = delete;
  [[nodiscard]] int get() const noexcept { return value_; }

 private:
  int value_;
};

struct Mapping {
  unsigned char const* data;
  std::int64_t size;
};

Mapping map_file(std::string const& path, std::string const& key) {
  auto const fail = [&](std::string const& what) {
    throw DataError{fmt::format("{}={}: {}", key, path, what)};
  };
  Descriptor const file{path};
  struct stat status {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0) {
    fail(fmt::format("cannot open: {}; name a readable text file", std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    fail("not a regular file; name a text file");
  }
  if (status.st_size == 0) {
    fail("the file is empty; name a text file with some text");
  }
  void* const data =
      mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) {
    fail(fmt::format("cannot map: {}", std::strerror(errno)));
  }
  return {static_cast<unsigned char const*>(data), status.st_size};
}

}  // namespace

TextFile::TextFile(std::string const& path, std::string const& key, std::int64_t vocab)
    : path_{path} {
  auto const [data, size] = map_file(path, key);
  data_ = data;
  size_ = size;
  if (vocab >= byte_tokens) {
    return;
  }
  auto const* const found =
      std::find_if(data_, data_ + size_, [vocab](unsigned char byte) { return byte >= vocab; });
  if (found == data_ + size_) {
    return;
  }
  auto const offset = found - data_;
  int const byte = *found;
  unmap();
  throw DataError{fmt::format(
      "{}={}: byte {} at offset {} is no token of model.vocab={}; bytes need model.vocab=256", key,
      path, byte, offset, vocab)};
}

TextFile::~TextFile() {
  unmap();
}

void TextFile::unmap() noexcept {
  munmap(const_cast<unsigned char*>(data_), static_cast<std::size_t>(size_));
}

double TextFile::unigram_entropy() const {
  std::array<std::int64_t, byte_tokens> counts{};
  std::for_each(data_, data_ + size_, [&](unsigned char byte) { ++counts[byte]; });
  double entropy{};
  for (auto const count : counts) {
    if (count == 0) {
      continue;
    }
    double const p = static_cast<double>(count) / static_cast<double>(size_);
    entropy -= p * std::log(p);
  }
  return entropy;
}

Windows::Windows(TextFile const& file, std::string const& key, std::int64_t sequence)
    : file_{file}, sequence_{sequence} {
  require(sequence >= 1, "Windows: sequence must be positive");
  count_ = (file.tokens() - 1) / sequence;
  if (count_ < 1) {
    throw DataError{fmt::format(
        "{}={}: has {} tokens, but train.sequence={} needs at least {}; give a longer text or a "
        "shorter sequence",
        key, file.path(), file.tokens(), sequence, sequence + 1)};
  }
}

std::int64_t Windows::shuffled(std::int64_t sample, std::uint64_t seed) const {
  require(sample >= 0, "Windows: negative sample");
  auto const count = static_cast<std::uint64_t>(count_);
  auto const s = static_cast<std::uint64_t>(sample);
  return static_cast<std::int64_t>(offstage::shuffled(s % count, count, seed, s / count));
}

TokenBatch Windows::batch(std::span<std::int64_t const> windows) const {
  TokenBatch result;
  result.batch = static_cast<std::int64_t>(windows.size());
  result.sequence = sequence_;
  auto const elements = windows.size() * static_cast<std::size_t>(sequence_);
  result.tokens.reserve(elements);
  result.targets.reserve(elements);
  for (auto const window : windows) {
    require(window >= 0 && window < count_, "Windows: no such window");
    std::int64_t const first = window * sequence_;
    for (std::int64_t t = first; t < first + sequence_; ++t) {
      result.tokens.push_back(file_[t]);
      result.targets.push_back(file_[t + 1]);
    }
  }
  return result;
}

}  // namespace offstage::data
