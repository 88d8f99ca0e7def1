#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/batch.hpp"
#include "data/token_file.hpp"

namespace offstage::data {

/// One of several files and its share of the samples.
struct Source {
  std::string path;
  double weight = 1.0;
};
/// "a.bin" or "a.bin:0.7,b.bin:0.3": files with relative weights, 1 if left out.
/// Errors: UsageError without the key's name: an empty path, a weight that is not above 0.
[[nodiscard]] std::vector<Source> parse_sources(std::string const& text);

struct DatasetOptions {
  std::string key;  ///< "data.train"
  Format format = Format::automatic;
  std::int64_t vocab{};
  std::int64_t sequence{};                ///< T
  bool cross_documents = true;            ///< a window may hold the end of one document and more
  std::optional<std::int32_t> separator;  ///< data.separator: ends a document where the format does
                                          ///< not say
};

/// Deals windows of T tokens with the T that follow them as targets.
///
/// Windows: with cross_documents window w of a file starts at token w T, so there are (tokens - 1) / T
///          of them. Without, a document of n tokens has ceil((n - 1) / T) windows of its own; the last
///          one is filled up with token 0 and ignored targets.
/// Samples: sample s of training, s counting from 0 over all steps, depends on seed and s alone. A file's
///          epochs show every window of it once, in an order of their own. Of several files each has its
///          weight's share of every stretch of samples (64 blocks deep at most), in shuffled order,
///          computed without counting from the start. One file has the order that it always had.
/// Errors:  DataError: no file has a window (says how many tokens there are and how many are needed);
///          cross_documents is false and neither the format nor a separator tells documents apart.
/// Threads: one.
class Dataset {
 public:
  Dataset(std::vector<Source> const& sources, DatasetOptions const& options);

  [[nodiscard]] std::int64_t sequence() const noexcept { return options_.sequence; }
  /// Windows of all files: one epoch of a single file; what validation walks through, file by file.
  [[nodiscard]] std::int64_t windows() const noexcept;
  /// The window, counted over all files, that is sample s.
  [[nodiscard]] std::int64_t shuffled(std::int64_t sample, std::uint64_t seed) const;
  /// The batch of these windows, in this order. Errors: those of TokenFile::read.
  [[nodiscard]] TokenBatch batch(std::span<std::int64_t const> windows) const;

 private:
  struct Part {
    std::unique_ptr<TokenFile> file;
    double weight{};
    std::int64_t first_window{};  ///< over all files
    std::int64_t windows{};
    std::vector<std::int64_t> documents;        ///< begins; empty if windows cross documents
    std::vector<std::int64_t> document_window;  ///< the first window of each document, in this file
  };
  DatasetOptions options_;
  std::vector<Part> parts_;
};

/// Targets that take part in the loss.
[[nodiscard]] std::int64_t counted_targets(TokenBatch const& batch);

}  // namespace offstage::data
