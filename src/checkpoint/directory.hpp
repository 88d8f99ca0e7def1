#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.hpp"

namespace offstage::checkpoint {

constexpr char const* master_name = "master.h5";
constexpr char const* unfinished_master_name = "master.h5.tmp";
/// The end of the name of a file while it comes from another node.
constexpr char const* unfinished_suffix = ".tmp";
constexpr char const* passed_over_name = "passed-over";

/// Names of a checkpoint's directory and files: "step-000000100", "rank-0003.h5", "node-0003.h5",
/// "rank-0003.json", "extent-0003-000012.h5", and "head-0003", which is scratch of a save.
[[nodiscard]] std::string step_name(std::int64_t step);
[[nodiscard]] std::string rank_file_name(int rank);
[[nodiscard]] std::string node_file_name(int node);
[[nodiscard]] std::string manifest_name(int rank);
[[nodiscard]] std::string extent_file_name(int rank, std::size_t subgroup);
[[nodiscard]] std::string head_file_name(int rank);
/// The step of a name that is "step-" and digits alone; nullopt for other names.
[[nodiscard]] std::optional<std::int64_t> step_of(std::string_view name);
/// The rank in a name that extent_file_name gives; a huge number if there is no rank in it.
[[nodiscard]] std::int64_t rank_of_extent_file(std::string_view name);
/// Returns true for the names that node_file_name gives to nodes below `nodes`.
[[nodiscard]] bool is_node_file_name(std::string_view name, std::int64_t nodes);
/// Returns true for the names that extent_file_name gives.
[[nodiscard]] bool is_extent_file_name(std::string_view name);

/// Names of a rank's files in a step directory: its own, its manifest, those of its extents.
/// Errors: IoError.
[[nodiscard]] std::vector<std::string> files_of(std::string const& step_directory, int rank);

struct StepDirectory {
  std::int64_t step{};
  std::string path;
};

/// The step directories inside a directory, oldest first; none if the directory is not there.
/// Symbolic links do not count as step directories.
/// Errors: IoError if it cannot be read.
[[nodiscard]] std::vector<StepDirectory> step_directories(std::string const& directory);

/// Says why the directory `path` is no complete checkpoint, and names some that may be meant: in
/// it, if it is that of a run or of checkpoints, and in `directory`.
/// Errors: those of step_directories.
[[nodiscard]] std::string why_no_checkpoint(std::string const& path, std::string const& directory);

/// The names in a directory. Errors: IoError if it cannot be read.
[[nodiscard]] std::vector<std::string> names_of(std::string const& directory);

/// The one name of a file or directory, by which two paths can be compared. The file need not be
/// there yet.
/// Errors: IoError if the name cannot be found out.
[[nodiscard]] std::string canonical(std::string const& path);

/// The size of a file; nullopt if there is none. Errors: IoError.
[[nodiscard]] std::optional<Bytes> size_of(std::string const& path);
/// Returns whether a step directory has a master: its save has finished. Errors: IoError.
[[nodiscard]] bool has_master(std::string const& step_directory);
/// The size of one of a checkpoint's files; nullopt if there is nothing of this name.
/// Errors: DataError if it is no regular file, but a link, a pipe or a directory; IoError.
[[nodiscard]] std::optional<Bytes> size_of_file(std::string const& path);
/// Reads a whole file. Errors: DataError if it is no regular file or larger than `limit`; IoError.
[[nodiscard]] std::string read_text(std::string const& path, Bytes limit = 64 * MiB);
/// Reads at most `most` bytes of a file from `offset` on; less if it ends before. Errors: IoError.
[[nodiscard]] std::string read_part(std::string const& path, Bytes offset, Bytes most);
/// Bytes of a file, and where they lie in it.
struct FilePart {
  Bytes offset{};
  std::span<std::byte const> bytes;
};
/// Writes inside an existing file, whose contents are durable when it returns: opens and syncs it
/// once. Errors: IoError.
void write_parts(std::string const& path, std::span<FilePart const> parts);
/// Writes a new file and makes its contents durable. Errors: IoError, also if the file exists.
void write_text(std::string const& path, std::string const& text);
/// Makes the contents of a file durable that another library wrote. Errors: IoError.
void sync_file(std::string const& path);

/// Removes a file if it is there. Errors: IoError.
void remove_file(std::string const& path);
/// Removes a checkpoint's files, and the directory if nothing else is in it. The master is removed
/// first and durably, so that the files that may be left over are no checkpoint. A directory that
/// is gone already, or that somebody else removes meanwhile, is no error.
/// Errors: IoError, also for a symbolic link.
void remove_checkpoint(std::string const& step_directory);

}  // namespace offstage::checkpoint
