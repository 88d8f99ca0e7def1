#pragma once

#include <span>
#include <string>

namespace offstage {

/// A library that is opened where it is needed instead of being linked. It is never closed: its
/// threads and exit handlers would outlive its code.
class SharedLibrary {
 public:
  /// The first of `files` that the system can load, names or paths. is_open() says whether one
  /// could.
  explicit SharedLibrary(std::span<std::string const> files);

  [[nodiscard]] bool is_open() const noexcept { return handle_ != nullptr; }
  /// Path of the library that was opened.
  [[nodiscard]] std::string const& file() const noexcept { return file_; }
  /// Why none was, by file; it names each.
  [[nodiscard]] std::string const& reasons() const noexcept { return reasons_; }

  /// Points `function` to what has that name; false if nothing has.
  template <class Function>
  [[nodiscard]] bool find(Function& function, char const* name) const {
    function = reinterpret_cast<Function>(address_of(name));
    return function != nullptr;
  }

 private:
  [[nodiscard]] void* address_of(char const* name) const;

  void* handle_{};
  std::string file_;
  std::string reasons_;
};

}  // namespace offstage
