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

/// Names and values on which the tokens depend: "--format", "megatron".
using Request = std::vector<std::pair<std::string, std::string>>;

/// A text as it was when a pack began.
struct NotedText {
  std::string path;
  Bytes size{};
  std::int64_t modified{};
};

/// PREFIX.pack.part: the progress of a pack, so that the same command goes on after its process was
/// killed. The file is locked while it is open, so that two packs never write the same files.
///
/// Format:  lines of JSON, each durable before the next is written: the request, then places. A
///         place has path, size and time of change of the texts that were read completely since the
///         place before. A last line that is not whole is dropped.
/// Kept:    the file stays from the first save() on; before, it is removed with the object.
/// Threads: one.
class ProgressFile {
 public:
  struct Saved {
    Progress progress;
    data::Written written;
    bool is_whole{};  ///< the token files are finished, and lack at most their names
  };

  /// Opens the file, or begins one.
  /// Errors: those of InputFile; UsageError if a place is saved and the request or the texts up to
  ///         there are others; DataError if one of these texts has changed, or the file is damaged;
  ///         LockedError if another process packs; IoError.
  ProgressFile(std::string const& prefix, Request const& request, std::vector<Text> const& texts);
  ~ProgressFile();
  ProgressFile(ProgressFile const&) = delete;
  ProgressFile& operator=(ProgressFile const&) = delete;

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  /// The place from which to go on, as TokenWriter takes it: null if there was no pack before,
  /// zeros if there was one that saved nothing.
  [[nodiscard]] std::optional<data::Written> begun() const;
  /// The last place; null if none was saved.
  [[nodiscard]] std::optional<Saved> const& saved() const noexcept { return saved_; }
  /// Saves a place. The tokens up to it are durable already (TokenWriter::save or finish).
  void save(Saved const& saved);
  /// Removes the file. The token files have their names.
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
  Bytes size_{};         ///< bytes up to the end of the last whole line
  bool was_there_{};     ///< an earlier pack had begun
  std::size_t noted_{};  ///< texts that were read completely, as the file says
  std::optional<Saved> saved_;
};

}  // namespace offstage::pack
