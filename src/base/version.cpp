#include "base/version.hpp"

#include <fmt/format.h>

namespace offstage {

char const* version() noexcept {
  return OFFSTAGE_VERSION;
}
char const* build_description() noexcept {
  return OFFSTAGE_BUILD;
}

char const* libraries() noexcept {
  return OFFSTAGE_LIBRARIES;
}
char const* gpu_architectures() noexcept {
  return OFFSTAGE_GPU_ARCHITECTURES;
}

std::string program_text(std::string const& commit, std::string const& libraries) {
  return fmt::format("offstage {} (commit {}, {}{}{})", version(), commit, build_description(),
                     libraries.empty() ? "" : "; ", libraries);
}

}  // namespace offstage
