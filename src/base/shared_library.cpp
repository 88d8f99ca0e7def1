#include "base/shared_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.hpp"

namespace offstage {

SharedLibrary::SharedLibrary(std::span<std::string const> files) {
  for (std::string const& file : files) {
    handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      file_ = file;
      return;
    }
    char const* const reason = dlerror();
    reasons_ += reasons_.empty() ? "" : "; ";
    reasons_ += reason != nullptr ? reason : fmt::format("{}: the system does not say why", file);
  }
}

void* SharedLibrary::address_of(char const* name) const {
  require(is_open(), "SharedLibrary: it is open");
  return dlsym(handle_, name);
}

}  // namespace offstage
