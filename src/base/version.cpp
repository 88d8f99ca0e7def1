#include "base/version.hpp"

namespace offstage {

char const* version() noexcept {
  return OFFSTAGE_VERSION;
}
char const* build_description() noexcept {
  return OFFSTAGE_BUILD;
}

}  // namespace offstage
