#pragma once

#include <string>

#include "base/units.hpp"

namespace offstage::device {

/// Device memory that does not suffice.
struct Shortage {
  std::string purpose;  ///< of what was to be allocated
  Bytes wanted{};
  Bytes available{};
  Bytes capacity{};
  Bytes set_aside{};  ///< of that, for libraries
};

/// Errors: always UsageError, which names the keys that help.
[[noreturn]] void throw_shortage(Shortage const& shortage);

}  // namespace offstage::device
