#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/batch.hpp"
#include "data/dataset_options.hpp"
#include "data/mixture.hpp"
#include "data/opened_sources.hpp"
#include "data/token_file.hpp"
#include "data/window_packing.hpp"

namespace offstage::data {

/// Windows of T tokens in `tokens` tokens that lie one behind the other: (tokens - 1) / T, so that
/// all T have a token that follows; with `padded` also one for the rest.
[[nodiscard]] std::int64_t count_windows(std::int64_t tokens, std::int64_t sequence, bool padded);

/// One file of a Dataset, for who wants to know on what a run trains.
struct FileFacts {
  std::string path;
  std::size_t source{};  ///< number of its source
  std::string part{};    ///< HeldOut::text
  Format format{};       ///< never automatic
  TokenType type{};
  std::int64_t tokens{};
  std::optional<std::int64_t> documents{};  ///< nullopt: nothing tells them apart
  std::int64_t windows{};
  double share{};                         ///< share of the samples
  std::optional<std::int64_t> counted{};  ///< tokens that its mask counts; nullopt: no mask
  /// Share of positions with tokens; nullopt: windows cross documents.
  std::optional<double> filled{};
  WindowRule rule{};
  /// Documents that are longer than a window: it ends them (whole), or they have several (apart).
  std::int64_t cut{};
  std::int64_t lost{};      ///< tokens behind the places where documents end so (whole)
  std::int64_t left_out{};  ///< documents of which no window holds a target that counts
  /// Share of a window's pairs of a token and one that it sees that documents which are held apart
  /// leave; nullopt: they are not.
  std::optional<double> attended{};
  bool ignores_separator{};  ///< the format stores where documents end, though one is given
  std::string doubt;         ///< TokenFile::doubt
  /// XXH3 of tokens from all over the file, and of what its mask says of them.
  std::uint64_t checksum{};
};

/// Whether FileFacts::doubt and FileFacts::checksum, for which files are read, are asked for.
enum class Samples { read, left_out };

/// The windows of one source of a Dataset, a file or a pattern of files.
struct SourceWindows {
  std::string path;  ///< path as it was given
  /// End of its windows, counted over all files; they begin where the source before ends.
  std::int64_t end{};
};

/// The first windows of each source that make `windows` together: shares of them by the sources'
/// sizes, and one at least of each that has any, even if these are more. `sizes` are the windows of
/// all sources, and so much is the most of each.
[[nodiscard]] std::vector<std::int64_t> spread_windows(std::int64_t windows,
                                                       std::span<std::int64_t const> sizes);

/// Deals windows of T tokens with the T that follow them as targets.
///
/// Windows: crossing: window w of a file starts at token w T, so there are (tokens - 1) / T of them
///          and neighbours share one token. apart: a document of n tokens has ceil((n - 1) / T)
///          windows of its own; the last one is filled up with token 0 and ignored targets. whole:
///          a window holds whole documents of together T + 1 tokens at most (pack_windows); a
///          longer document is cut to that; the rest is filled up. No document's first token is a
///          target but where windows cross documents.
/// Masks:   a token whose mask says 0 is an ignored target; as an input it stays.
/// Samples: sample s of training, s counting from 0 over all steps, depends on seed and s alone. A
///          file's epochs show every window of it once, each in an order of its own. Files without
///          weights, and those of one pattern, are dealt like one file that has all their windows.
///          Of several weights each has its share of the samples, see Mixture.
/// Documents: with documents_apart each token of a batch has the begin of its document; what fills
///          a row up is one of its own.
/// Held-out ends: of every file its end alone, or all but its end; an end that is too short for a
///          window is left out.
/// Short files: a file of a pattern that has no window is left out (short_files).
/// Memory:  16 bytes per document (whole: 24), where windows cross documents 8, or nothing if these
///          are not held apart.
/// Errors:  DataError: no file of a source has a window (says how many tokens there are and are
///          needed); no held-out end has a window; those of OpenedSources.
/// Threads: one.
class Dataset {
 public:
  /// Opens the sources, and scans them here.
  Dataset(std::vector<Source> const& sources, DatasetOptions const& options);
  /// Takes files of which none awaits a scan.
  explicit Dataset(OpenedSources opened);

  [[nodiscard]] std::int64_t sequence() const noexcept { return options_.sequence; }
  /// Whether batches say where documents begin (TokenBatch::begins).
  [[nodiscard]] bool marks_documents() const noexcept {
    return options_.documents_apart && options_.rule != WindowRule::apart;
  }
  /// Windows of all files: an epoch of files without weights; what validation walks through, file
  /// by file.
  [[nodiscard]] std::int64_t windows() const noexcept;
  /// In the order of the sources.
  [[nodiscard]] std::vector<SourceWindows> const& sources() const noexcept { return sources_; }
  /// The window, counted over all files, that is sample s.
  [[nodiscard]] std::int64_t shuffled(std::int64_t sample, std::uint64_t seed) const;
  /// Files of patterns that are left out, because they have no window.
  [[nodiscard]] std::vector<std::string> const& short_files() const noexcept {
    return short_files_;
  }
  /// In the order of the sources. Reads a little of each file, or nothing. Errors: IoError.
  [[nodiscard]] std::vector<FileFacts> files(Samples samples = Samples::read) const;
  /// FileFacts::attended of all samples; 1 where documents are not held apart.
  [[nodiscard]] double attended() const;
  /// The batch of these windows, in this order. Errors: those of TokenFile::read.
  [[nodiscard]] TokenBatch batch(std::span<std::int64_t const> windows) const;

 private:
  struct Part : OpenedFile {
    std::size_t group{};
    std::size_t source{};
    std::int64_t first_window{};  ///< over all files
    std::int64_t windows{};
    std::vector<std::int64_t> document_window{};  ///< apart: of each document the first
    PackedWindows packed{};                       ///< whole
    std::int64_t cut{}, lost{}, left_out{};       ///< FileFacts
    std::optional<double> filled{}, attended{};   ///< FileFacts
  };
  /// Files that are dealt like one: those of one weight, or all where there are no weights.
  struct Group {
    double weight{};
    std::int64_t first_window{};  ///< over all files
    std::int64_t windows{};
  };
  struct Range {
    std::int64_t first{};
    std::int64_t count{};  ///< at most T + 1
  };

  /// Adds the files of the source that comes next, and of the last group.
  void add(OpenedSource& source);
  /// Deals a file's windows, of which there may be none.
  [[nodiscard]] Part deal(OpenedFile opened) const;
  /// The error of a part without windows: what it has, and needs.
  [[nodiscard]] std::string describe_shortage(Part const& part) const;
  /// ", all but the last 2 %", behind a path; empty: nothing is held out.
  [[nodiscard]] std::string held_out_text() const;
  void deal_apart(Part& part) const;
  void deal_whole(Part& part) const;
  /// FileFacts::share.
  [[nodiscard]] double share_of(Part const& part) const;
  /// FileFacts::attended.
  [[nodiscard]] double attended_by(Part const& part) const;
  /// Places in a window's row of T of its documents, and of what fills it up. They follow each
  /// other.
  [[nodiscard]] std::vector<Range> documents_of(Part const& part, std::int64_t window) const;
  [[nodiscard]] std::int64_t length_of(Part const& part, std::size_t document) const;
  /// FileFacts::checksum.
  [[nodiscard]] static std::uint64_t sampled_checksum(Part const& part);
  /// False if no target that counts lies in these tokens.
  [[nodiscard]] static bool has_target(Part const& part, Range const& tokens);
  /// Ranges of the file that are in the window, in order.
  [[nodiscard]] std::vector<Range> ranges_of(Part const& part, std::int64_t window) const;
  [[nodiscard]] Range range_apart(Part const& part, std::int64_t window) const;
  /// Puts the tokens of a range into a row of T at `place`, with the targets that follow them.
  void fill(Part const& part, Range const& range, std::int64_t place,
            std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const;

  DatasetOptions options_;
  std::vector<Part> parts_;
  std::vector<SourceWindows> sources_;
  std::vector<std::string> short_files_;
  std::vector<Group> groups_;
  Mixture mixture_;
};

/// Adds rows without a target that counts up to `rows`.
void fill_up(TokenBatch& batch, std::int64_t rows);

/// Targets that take part in the loss.
[[nodiscard]] std::int64_t counted_targets(TokenBatch const& batch);

}  // namespace offstage::data
