#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace offstage::checkpoint {

/// Level 1 of a run lies in a directory of its own inside checkpoint.local, `level-1-ID`. A file in the directory of
/// checkpoints, `level-1`, says which: so that a run takes its own, and not what another left on the same node. It says
/// as well where it was written, so that a copy of the directory of checkpoints takes nothing of the first one's.
struct LocalDirectory {
  std::string parent;  ///< checkpoint.local
  std::string name;    ///< "level-1-0123456789abcdef"
  std::string owner;   ///< canonical path of the directory of checkpoints

  [[nodiscard]] std::string path() const { return parent + "/" + name; }
  /// Level 3 of the same run on the same node: copies of another node's level 1.
  [[nodiscard]] std::string copies_path() const;
  friend bool operator==(LocalDirectory const&, LocalDirectory const&) = default;
};

/// True for such names.
[[nodiscard]] bool is_local_name(std::string_view name);
/// True for names of level 3: `level-3-ID`.
[[nodiscard]] bool is_copies_name(std::string_view name);
/// 1 or 3 for a step directory in a directory of such a name, 2 for all others.
[[nodiscard]] int level_of(std::string const& step_directory);

/// The file's path.
[[nodiscard]] std::string local_record(std::string const& checkpoints);
/// The directory that the file in `checkpoints` names; null without such a file. Errors: DataError if the
/// file is damaged; IoError.
[[nodiscard]] std::optional<LocalDirectory> read_local_directory(std::string const& checkpoints);
/// A directory inside `parent`: the one that the file names if it lies there and was named here, else
/// one of a fresh name. What is not looked at then is said (log). Writes nothing. Errors: IoError.
[[nodiscard]] LocalDirectory choose_local_directory(std::string const& checkpoints,
                                                    std::string const& parent);
/// Makes the file name this one, durably. Errors: IoError.
void record_local_directory(std::string const& checkpoints, LocalDirectory const& directory);
/// Names none any more, durably: what lies there is no run's from now on. Errors: IoError.
void forget_local_directory(std::string const& checkpoints);

}  // namespace offstage::checkpoint
