#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace offstage::data {

/// One of several files and its share of the samples.
struct Source {
  std::string path;
  double weight = 1.0;
};
/// "a.bin" or "a.bin:0.7,b.bin:0.3": files with relative weights, 1 if left out. A path has no comma,
/// and one with a colon in its name needs a weight.
/// Errors: UsageError without the key's name: an empty path, a weight that is not above 0 or below a
///         billionth of all weights together.
[[nodiscard]] std::vector<Source> parse_sources(std::string const& text);

/// Which file each sample comes from.
///
/// Order:  samples are cut into blocks, as long as the smallest share needs for one sample
///         (256 at least). After every whole number of blocks each file has its share of all samples
///         so far within one. Inside a block the order is shuffled.
/// Method: file i gets the samples between floor(n c(i-1)) and floor(n c(i)) of the first n, n a whole
///         number of blocks and c the cumulative shares, in integers; so nothing is counted from the
///         start, and no share drifts.
class Mixture {
 public:
  /// Weights above 0; at least a billionth of their sum.
  explicit Mixture(std::span<double const> weights);

  struct Pick {
    std::size_t file{};
    std::int64_t
        index{};  ///< how many samples the file gave before this one, in the order of places
  };
  /// Sample s >= 0. Each file's indices are 0, 1, 2, ... without gap or repetition, in shuffled order
  /// within a block. Depends on `sample` and `seed` alone.
  [[nodiscard]] Pick pick(std::int64_t sample, std::uint64_t seed) const;

  [[nodiscard]] std::int64_t block() const noexcept { return block_; }

 private:
  /// Samples of the first `blocks` blocks that belong to files before `file`.
  [[nodiscard]] std::int64_t before(std::size_t file, std::int64_t blocks) const;

  std::vector<std::uint64_t> cumulative_;  ///< in units of 2^-53, from 0 to 2^53
  std::int64_t block_{};
};

}  // namespace offstage::data
