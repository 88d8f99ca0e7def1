#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace offstage {

/// A fresh directory under $TMPDIR or /tmp, removed with everything in it at destruction.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "offstage-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error{"mkdtemp " + name};
    }
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(TemporaryDirectory const&) = delete;
  TemporaryDirectory& operator=(TemporaryDirectory const&) = delete;

  [[nodiscard]] std::filesystem::path const& path() const noexcept { return path_; }
  /// Writes a file into the directory and returns its path.
  std::string write(std::string const& name, std::string_view contents) const {
    auto const file = (path_ / name).string();
    std::ofstream{file, std::ios::binary} << contents;
    return file;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace offstage
