#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace offstage::data {

/// A file, or a pattern of files (expand), and its share of the samples.
struct Source {
  std::string path;
  std::optional<double> weight{};  ///< all sources have one, or none has
};
/// "a.bin,b.bin" or "a.bin:0.7,b.bin:0.3": files, or files with relative weights. A path has no
/// comma, and one with a colon in its name needs a weight. Blanks round commas and at both ends are
/// no part of a path.
/// Errors: UsageError without the key's name: an empty path, some paths with a weight and some
///         without, a weight that is not above 0 or below a billionth of all weights together.
[[nodiscard]] std::vector<Source> parse_sources(std::string const& text);
/// Files that are read one after the other. Errors: UsageError, as above, also for a weight other
/// than 1.
[[nodiscard]] std::vector<Source> parse_sources_in_turn(std::string const& text);

/// The file, or the group of files, that each sample comes from.
///
/// Order:  samples are cut into blocks of 64. After every whole number of blocks, each of N files
///         has its share of all samples so far within ceil(log2 N) / 2 samples; inside a block the
///         files come in shuffled order. A file's own samples stay in their order.
/// Method: the files are halved and halved again; of n samples one half gets its share, rounded,
///         and the other one the rest. Both grow with n, so no file ever gives a sample back,
///         nothing is counted from the start, and no share drifts, however small it is.
class Mixture {
 public:
  static constexpr std::int64_t block = 64;

  /// Weights above 0; at least a billionth of their sum.
  explicit Mixture(std::span<double const> weights);

  struct Pick {
    std::size_t file{};
    std::int64_t index{};  ///< how many samples the file gave before this one
  };
  /// Sample s >= 0. Depends on `sample`, `seed` and the weights alone; computes up to one block.
  [[nodiscard]] Pick pick(std::int64_t sample, std::uint64_t seed) const;

 private:
  /// The file at a place of a block whose files come in order, and what it gave before the block.
  [[nodiscard]] Pick file_at(std::int64_t block_number, std::int64_t place) const;

  std::vector<std::uint64_t> cumulative_;  ///< weights in units of 2^-53 of all, summed from 0
};

}  // namespace offstage::data
