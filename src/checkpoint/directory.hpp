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
constexpr char const* passed_over_name = "passed-over";

/// "step-000000100", "rank-0003.h5", "node-0003.h5", "rank-0003.json", "extent-0003-000012.h5",
/// "head-0003": scratch of a save.
[[nodiscard]] std::string step_name(std::int64_t step);
[[nodiscard]] std::string rank_file_name(int rank);
[[nodiscard]] std::string node_file_name(int node);
[[nodiscard]] std::string manifest_name(int rank);
[[nodiscard]] std::string extent_file_name(int rank, std::size_t subgroup);
[[nodiscard]] std::string head_file_name(int rank);
/// The step of a name that is "step-" and digits alone.
[[nodiscard]] std::optional<std::int64_t> step_of(std::string_view name);
/// The rank in such a name, of one that extent_file_name gives; a huge number if it is no rank.
[[nodiscard]] std::int64_t rank_of_extent_file(std::string_view name);
/// True for the names that node_file_name gives, of fewer than `nodes`.
[[nodiscard]] bool is_node_file_name(std::string_view name, std::int64_t nodes);
/// True for the names that extent_file_name gives.
[[nodiscard]] bool is_extent_file_name(std::string_view name);

/// Names of a rank's files in a step directory: its own, its manifest, those of its extents.
/// Errors: IoError.
[[nodiscard]] std::vector<std::string> files_of(std::string const& step_directory, int rank);

struct StepDirectory {
  std::int64_t step{};
  std::string path;
};

/// The step directories inside a directory, oldest first; none if the directory is not there. Symbolic links
/// are none.
/// Errors: IoError if it cannot be read.
[[nodiscard]] std::vector<StepDirectory> step_directories(std::string const& directory);

/// The names in a directory. Errors: IoError if it cannot be read.
[[nodiscard]] std::vector<std::string> names_of(std::string const& directory);

/// One name per file or directory, to tell whether two paths mean the same; also of what is not there yet.
/// Errors: IoError if that cannot be told.
[[nodiscard]] std::string canonical(std::string const& path);

/// The size of a file; nullopt if there is none. Errors: IoError.
[[nodiscard]] std::optional<Bytes> size_of(std::string const& path);
/// The size of one of a checkpoint's files; nullopt if there is nothing of this name. Errors: DataError if
/// it is no regular file, but a link, a pipe or a directory; IoError.
[[nodiscard]] std::optional<Bytes> size_of_file(std::string const& path);
/// A whole file. Errors: DataError if it is no regular file or larger than `limit`; IoError.
[[nodiscard]] std::string read_text(std::string const& path, Bytes limit = 64 * MiB);
/// At most `most` bytes of a file from `offset` on; less if it ends before. Errors: IoError.
[[nodiscard]] std::string read_part(std::string const& path, Bytes offset, Bytes most);
/// Writes inside a file that is there, not durably. Errors: IoError.
void write_part(std::string const& path, Bytes offset, std::span<std::byte const> bytes);
/// Writes a new file and makes its contents durable. Errors: IoError, also if it is there.
void write_text(std::string const& path, std::string const& text);
/// Makes a file's contents durable that another library wrote. Errors: IoError.
void sync_file(std::string const& path);

/// Creates a directory with its parents, durably; false if it was there. Errors: IoError.
bool make_directory(std::string const& path);
/// Removes a file if it is there. Errors: IoError.
void remove_file(std::string const& path);
/// Removes a checkpoint's files, master first and durably, so that what is left over is no checkpoint,
/// and the directory if nothing else is in it. Errors: IoError, also for a symbolic link.
void remove_checkpoint(std::string const& step_directory);

}  // namespace offstage::checkpoint
