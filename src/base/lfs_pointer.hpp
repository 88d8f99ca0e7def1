#pragma once

#include <string_view>

namespace offstage {

/// Text behind a file's name in errors.
constexpr char const* lfs_pointer_advice = "is a Git LFS pointer: run git lfs pull";

constexpr std::string_view lfs_pointer_start = "version https://git-lfs.github.com/spec/";

/// True if a file that begins so is a Git LFS pointer. A clone without Git LFS has one in place of
/// each large file.
[[nodiscard]] constexpr bool is_lfs_pointer(std::string_view beginning) {
  return beginning.starts_with(lfs_pointer_start);
}

}  // namespace offstage
