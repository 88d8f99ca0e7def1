#pragma once

#include <filesystem>

namespace offstage {

/// The path without a slash at its end, so that its filename is that of what it names.
[[nodiscard]] inline std::filesystem::path without_slash(std::filesystem::path const& path) {
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace offstage
