#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/units.hpp"

namespace offstage {

/// Opens a file that this program writes in a directory where others may create files too. A
/// symbolic link is not followed, wherever it leads: another user could have put it there to have
/// one of this user's files overwritten. A pipe is refused, not waited for.
/// `flags`: as of open(2); O_CLOEXEC is added. `mode`: of a file that is created, less what the
/// umask takes. Returns a descriptor, which is the caller's to close; -1 if there is no file and
/// `flags` lack O_CREAT.
/// Errors:  IoError: `action`, as in "run.dir: cannot open", the path, and what is wrong; where
///          something else than a file is there, what would be right.
[[nodiscard]] int open_regular(std::string const& action, std::string const& path, int flags,
                               unsigned mode = 0666);

/// True if there is something at `path`, links followed. Errors: IoError if that cannot be told, as
/// in a directory that this user may not search.
[[nodiscard]] bool is_there(std::string const& path);

/// True if there is a file, or a directory, at `path`, links followed. Errors: as is_there.
[[nodiscard]] bool is_file(std::string const& path);
[[nodiscard]] bool is_directory(std::string const& path);
/// True if there is a file at `path` with nothing in it. One that cannot be looked at has
/// something.
[[nodiscard]] bool is_empty_file(std::string const& path) noexcept;
/// True if there is something at `path` at which this user may look. It is for paths that are
/// opened anyway, so that the open says what is wrong. Errors: IoError if the file system fails.
[[nodiscard]] bool is_visible(std::string const& path);
/// True if two paths, of which something is at one at least, lead to the same file or directory.
/// Errors: IoError if that cannot be told.
[[nodiscard]] bool lead_to_one(std::string const& a, std::string const& b);

/// True if `path` itself is a symbolic link.
[[nodiscard]] bool is_link(std::string const& path) noexcept;
/// Errors: IoError, as above, if `path` itself is a symbolic link. Nothing there is no error.
void refuse_link(std::string const& action, std::string const& path);

/// Gives a file, or a directory, the name `to` in the place of `from`; a file of that name goes.
/// Errors: IoError: `action`, as in "cannot rename to", `to`, and what is wrong.
void rename_file(std::string const& action, std::string const& from, std::string const& to);

/// Gives a file the further name `to`, which nothing has. False, with errno, if the file system
/// does not: BeeGFS may make a symbolic link instead, which is removed.
[[nodiscard]] bool link_file(std::string const& from, std::string const& to) noexcept;

/// Reads from `offset` on until `out` is full or the file ends, whatever signals and short
/// transfers come between. Returns the bytes read. If they are fewer, errno says why; 0: the file
/// ends there.
[[nodiscard]] Bytes read_fully(int descriptor, std::span<std::byte> out, Bytes offset) noexcept;
/// Writes from `offset` on in the same way. Returns the bytes written; if they are fewer, errno
/// says why.
[[nodiscard]] Bytes write_fully(int descriptor, std::span<std::byte const> bytes,
                                Bytes offset) noexcept;
/// The same where the descriptor stands.
[[nodiscard]] Bytes write_fully(int descriptor, std::string_view text) noexcept;

/// A text file open for writing by open_regular, made if it is not there.
/// Errors: IoError: `context` ("run.dir"), what failed, the path.
class OutputFile {
 public:
  /// `flags`: O_APPEND, O_TRUNC or both.
  OutputFile(std::string context, std::string path, int flags);
  ~OutputFile();
  OutputFile(OutputFile const&) = delete;
  OutputFile& operator=(OutputFile const&) = delete;

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  /// Another name of the very file, whatever has taken its place meanwhile.
  [[nodiscard]] std::string own_name() const;
  void write(std::string_view text);
  [[nodiscard]] Bytes size() const;
  /// Cuts off what is beyond `size`.
  void shorten(Bytes size);
  void sync();
  /// Reports what NFS and quotas defer until then.
  void close();

 private:
  [[noreturn]] void fail(char const* action) const;

  std::string context_;
  std::string path_;
  int descriptor_;
};

/// A text file that gets its name, `path`, when it is whole: until then it is PATH.PID.tmp, so that
/// processes of a node that write the same file do not meet. It takes the place of a file of that
/// name.
/// Errors: IoError: `context`, what failed, the path.
class WholeFile {
 public:
  /// Opens the draft. Errors: IoError as well where something else than a file is at `path`.
  WholeFile(std::string const& context, std::string path);
  /// Removes a draft that was not committed.
  ~WholeFile();
  WholeFile(WholeFile const&) = delete;
  WholeFile& operator=(WholeFile const&) = delete;

  /// Writes `text` and gives the file its name. To be called once.
  void commit(std::string_view text);

 private:
  std::string context_, path_;
  OutputFile draft_;
  bool is_whole_{};
};

}  // namespace offstage
