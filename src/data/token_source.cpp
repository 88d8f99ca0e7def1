#include "data/token_source.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <system_error>

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/units.hpp"

namespace offstage::data {
namespace {

constexpr std::int64_t byte_tokens = 256;

/// Calls `work` with all tokens of the file, piece by piece.
template <class Work>
void for_each_piece(TextFile const& file, Work const& work) {
  std::vector<unsigned char> buffer(static_cast<std::size_t>(std::min(file.tokens(), MiB)));
  auto const step = static_cast<std::int64_t>(buffer.size());
  for (std::int64_t offset = 0; offset < file.tokens(); offset += step) {
    auto const size = static_cast<std::size_t>(std::min(step, file.tokens() - offset));
    auto const piece = std::span{buffer}.first(size);
    file.read(offset, piece);
    work(piece);
  }
}

}  // namespace

// Opening a pipe must not block: it is refused by name.
TextFile::Descriptor::Descriptor(std::string const& path)
    : value_{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)} {}

TextFile::Descriptor::~Descriptor() {
  if (value_ >= 0) {
    close(value_);
  }
}

TextFile::TextFile(std::string const& path, std::string const& key, std::int64_t vocab)
    : path_{path}, key_{key}, vocab_{vocab}, file_{path} {
  struct stat status {};
  if (file_.get() < 0 || fstat(file_.get(), &status) != 0) {
    fail(fmt::format("cannot open: {}; name a readable text file",
                     std::generic_category().message(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    fail("not a regular file; name a text file");
  }
  if (status.st_size == 0) {
    fail("the file is empty; name a text file with some text");
  }
  size_ = status.st_size;
  if (vocab < byte_tokens) {
    for_each_piece(*this, [](auto) {});  // read() finds the bytes that are no tokens
  }
}

void TextFile::fail(std::string const& problem) const {
  throw DataError{fmt::format("{}={}: {}", key_, path_, problem)};
}

void TextFile::read(std::int64_t offset, std::span<unsigned char> bytes) const {
  auto const size = static_cast<std::int64_t>(bytes.size());
  require(offset >= 0 && size <= size_ && offset <= size_ - size, "TextFile: read beyond the end");
  for (std::int64_t done = 0; done < size;) {
    auto const count = pread(file_.get(), bytes.data() + done,
                             static_cast<std::size_t>(size - done), offset + done);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      fail(fmt::format("cannot read at offset {}: {}", offset + done,
                       std::generic_category().message(errno)));
    }
    if (count == 0) {
      fail(fmt::format(
          "the file had {} bytes when it was opened and now ends before byte {}; leave it as it "
          "is while a run reads it",
          size_, offset + done));
    }
    done += count;
  }
  auto const beyond =
      std::ranges::find_if(bytes, [vocab = vocab_](unsigned char byte) { return byte >= vocab; });
  if (beyond != bytes.end()) {
    fail(fmt::format(
        "byte {} at offset {} is no token of model.vocab={}; bytes need model.vocab=256", *beyond,
        offset + (beyond - bytes.begin()), vocab_));
  }
}

double TextFile::unigram_entropy() const {
  std::array<std::int64_t, byte_tokens> counts{};
  for_each_piece(*this, [&](std::span<unsigned char const> piece) {
    for (auto const byte : piece) {
      ++counts[byte];
    }
  });
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
  std::vector<unsigned char> bytes(static_cast<std::size_t>(sequence_ + 1));
  for (auto const window : windows) {
    require(window >= 0 && window < count_, "Windows: no such window");
    file_.read(window * sequence_, bytes);
    result.tokens.insert(result.tokens.end(), bytes.begin(), bytes.end() - 1);
    result.targets.insert(result.targets.end(), bytes.begin() + 1, bytes.end());
  }
  return result;
}

}  // namespace offstage::data
