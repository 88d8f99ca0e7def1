#pragma once

#include <cstdlib>
#include <string_view>

namespace offstage {

/// Whether a test tries all it could (OFFSTAGE_TESTS=all in the environment, as tests/campaign.sh
/// whole has it), or a choice.
inline bool tries_all() {
  char const* const wanted = std::getenv("OFFSTAGE_TESTS");
  return wanted != nullptr && std::string_view{wanted} == "all";
}

}  // namespace offstage
