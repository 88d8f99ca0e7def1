#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/token_writer.hpp"
#include "pack/packer.hpp"

namespace offstage::pack {

/// Names and values that the tokens depend on: "--format", "megatron".
using Request = std::vector<std::pair<std::string, std::string>>;

/// A text as it was when a pack began.
struct NotedText {
  std::string path;
  Bytes size{};
  std::int64_t modified{};
};

/// PREFIX.pack.part: how far a pack is, so that the same command goes on after its process was killed. It is locked while it is
/// open, so that two packs never write the same files.
///
/// Format: lines of JSON, each written and made last before the next: the request, then places. A place tells of the texts that were read
///         whole since the place before: path, size and time of change. A last line that is not whole is dropped.
/// Kept:   from the first save() on; before, the file is removed with the object.
/// Threads: one.
class ProgressFile {
 public:
  struct Saved {
    Progress progress;
    data::Written written;
    bool is_whole{};  ///< the files are finished, and lack at most their names
  };

  /// Errors: those of InputFile; UsageError if a place is saved and the request or the texts up to there are others; DataError if one of these
  ///         texts has changed, or the file is damaged; LockedError if another process packs; IoError.
  ProgressFile(std::string const& prefix, Request const& request, std::vector<Text> const& texts);
  ~ProgressFile();
  ProgressFile(ProgressFile const&) = delete;
  ProgressFile& operator=(ProgressFile const&) = delete;

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  /// The place from which to go on, as TokenWriter takes it: null if no pack was here, zeros if one was and saved nothing.
  [[nodiscard]] std::optional<data::Written> begun() const;
  /// The last place; null if none was saved.
  [[nodiscard]] std::optional<Saved> const& saved() const noexcept { return saved_; }
  /// Saves a place. What was written up to there lasts already (TokenWriter::save or finish).
  void save(Saved const& saved);
  /// Removes the file, when the token files have their names.
  void remove();

 private:
  void open();
  [[nodiscard]] std::string contents() const;
  void read(Request const& request);
  void begin(Request const& request);
  void append(std::string line);

  std::string path_;
  std::vector<NotedText> texts_;
  int descriptor_ = -1;
  Bytes size_{};         ///< up to the end of the last good line
  bool was_there_{};     ///< a pack before began
  std::size_t noted_{};  ///< texts that the file says were read whole
  std::optional<Saved> saved_;
};

}  // namespace offstage::pack
