#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace offstage::checkpoint {

/// A start of a run that came to its first step.
struct Start {
  std::uint64_t id{};   ///< a random number
  std::int64_t step{};  ///< the step at which it began
  friend bool operator==(Start const&, Start const&) = default;
};

/// Returns whether what the start `id` saved at `step` is of the run's present history: no later
/// start began before that step. Nodes that a start lacks keep what it did not go on from.
/// `starts`: oldest first; an id that is not among them is older than all.
[[nodiscard]] bool is_in_history(std::vector<Start> const& starts, std::uint64_t id,
                                 std::int64_t step);
/// Adds a start, and leaves out those of which nothing is in the history any more.
void add_start(std::vector<Start>& starts, Start const& start);

/// The directory of a run's level 1 inside checkpoint.local, `level-1-ID`. The file `level-1` in
/// the directory of checkpoints names it, so that a run takes its own and not one that another run
/// left on the same node. The file also says where it was written, so that a copy of the directory
/// of checkpoints takes nothing that belongs to the original.
struct LocalDirectory {
  std::string parent;           ///< checkpoint.local
  std::string name;             ///< "level-1-0123456789abcdef"
  std::string owner;            ///< canonical path of the directory of checkpoints
  std::vector<Start> starts{};  ///< starts that may have saved there, oldest first

  [[nodiscard]] std::string path() const { return parent + "/" + name; }
  /// The directory of level 3 of the same run on the same node: copies of another node's level 1.
  [[nodiscard]] std::string copies_path() const;
  friend bool operator==(LocalDirectory const&, LocalDirectory const&) = default;
};

/// The contents of the file `level-1`.
[[nodiscard]] std::string text_of(LocalDirectory const& directory);
/// The directory of such a text; null if it is damaged.
[[nodiscard]] std::optional<LocalDirectory> parse_local_directory(std::string const& text);
/// A random number: of a directory's name, of a start.
[[nodiscard]] std::uint64_t random_id();

/// Returns true for names of level 1: `level-1-ID`.
[[nodiscard]] bool is_local_name(std::string_view name);
/// Returns true for names of level 3: `level-3-ID`.
[[nodiscard]] bool is_copies_name(std::string_view name);
/// The level of a step directory: 1 or 3 in a directory of such a name, 2 in all others.
[[nodiscard]] int level_of(std::string const& step_directory);

/// The path of the file `level-1`.
[[nodiscard]] std::string local_record(std::string const& checkpoints);
/// The directory that the file in `checkpoints` names; null without such a file. Errors: DataError
/// if the file is damaged; IoError.
[[nodiscard]] std::optional<LocalDirectory> read_local_directory(std::string const& checkpoints);
/// Chooses a directory inside `parent`: the one that the file names if it lies there and was named
/// here, else the announced one, else one of a fresh name. The log names the directory that is then
/// not looked at. Writes nothing. Errors: IoError.
[[nodiscard]] LocalDirectory choose_local_directory(std::string const& checkpoints,
                                                    std::string const& parent);
/// Notes a directory before it is made, durably, so that the next start takes it if this one is
/// killed before its first step. Errors: IoError.
void announce_local_directory(std::string const& checkpoints, LocalDirectory const& directory);
/// Takes the note back.
void withdraw_local_directory(std::string const& checkpoints) noexcept;
/// Makes the file name this directory, durably, and takes the note back. Errors: IoError.
void record_local_directory(std::string const& checkpoints, LocalDirectory const& directory);
/// Makes the file name no directory, durably. The checkpoints in the old one belong to no run from
/// now on; a warning names it if it is still there. Errors: IoError.
void forget_local_directory(std::string const& checkpoints);

}  // namespace offstage::checkpoint
