#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset_options.hpp"
#include "data/loss_mask.hpp"
#include "data/mixture.hpp"
#include "data/token_file.hpp"

namespace offstage::data {

struct OpenedFile {
  std::unique_ptr<TokenFile> file;      ///< without what is held out, or that alone
  std::unique_ptr<LossMask> mask;       ///< null: all tokens count
  std::vector<std::int64_t> documents;  ///< begins; empty if nobody asks for them
  bool ignores_separator{};             ///< FileFacts
  bool awaits_scan{};                   ///< the separator alone tells where documents begin
};

/// A source whose files are open. `empty` are those of a pattern that hold no byte.
struct OpenedSource {
  Source source;
  std::vector<OpenedFile> files;
  std::vector<std::string> empty;
};

/// The sources of a Dataset with their files open, before windows are dealt. Where a separator
/// alone tells where documents begin, somebody must still read the files for it: the ranks of a run
/// share that.
/// Threads: one.
class OpenedSources {
 public:
  /// Errors: DataError: a file is a text by format=automatic alone and the vocabulary is not 256;
  ///         documents are asked for, and neither the format nor a separator tells them apart; the
  ///         separator is no token; a pattern matches no file; of what is not held out no token
  ///         counts; those of open_tokens and LossMask.
  OpenedSources(std::vector<Source> const& sources, DatasetOptions const& options);

  [[nodiscard]] DatasetOptions const& options() const noexcept { return options_; }
  /// Files in which the separator is to be looked for, in order.
  [[nodiscard]] std::vector<TokenFile const*> unscanned() const;
  /// Takes what documents_by_separator tells of each of unscanned(), of which none remains.
  void take_documents(std::vector<std::vector<std::int64_t>> documents);
  /// The same by reading all of them here.
  void scan();
  /// In order, to be taken from.
  [[nodiscard]] std::vector<OpenedSource>& sources() noexcept { return sources_; }

 private:
  [[nodiscard]] OpenedFile open(std::string const& path) const;
  /// Leaves what is held out, or takes it alone.
  void hold_out(OpenedFile& opened) const;
  /// Reads where documents begin, if the format says it.
  void find_documents(OpenedFile& opened) const;
  /// Errors: DataError: the separator is no token.
  void require_separator() const;

  DatasetOptions options_;
  std::vector<OpenedSource> sources_;
};

}  // namespace offstage::data
