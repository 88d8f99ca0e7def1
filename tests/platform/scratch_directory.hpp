#pragma once

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace offstage {

/// A fresh directory under the working directory (a real file system, where /tmp may be a tmpfs),
/// removed with what is in it.
class ScratchDirectory {
 public:
  ScratchDirectory() : path_{(std::filesystem::current_path() / "scratch-XXXXXX").string()} {
    if (mkdtemp(path_.data()) == nullptr) {
      throw std::runtime_error{"mkdtemp: " + path_};
    }
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(ScratchDirectory const&) = delete;
  ScratchDirectory& operator=(ScratchDirectory const&) = delete;

  [[nodiscard]] std::string const& path() const { return path_; }
  [[nodiscard]] std::string operator/(std::string const& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace offstage
