#pragma once

#include <string>

#include "base/units.hpp"

namespace offstage::device {

/// Device memory that does not suffice.
struct Shortage {
  std::string purpose;  ///< purpose of the allocation that failed
  Bytes wanted{};
  Bytes available{};
  Bytes capacity{};
  Bytes set_aside{};  ///< part of that which is set aside for libraries
};

/// Errors: always UsageError, which names the keys that help.
[[noreturn]] void throw_shortage(Shortage const& shortage);

}  // namespace offstage::device
