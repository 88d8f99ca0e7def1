#pragma once

#include <cstdint>
#include <string>

#include "base/units.hpp"

namespace offstage::checkpoint {

/// Figures of one save.
struct SaveStats {
  std::string path;
  Seconds seconds{};  ///< duration of the work on the rank that took longest
  /// Part of `seconds` spent in pauses for a rate; a save that hurries makes none.
  Seconds paused{};
  Seconds stood_still{};  ///< time inside begin_save and finish_save, with waiting for other ranks
  /// Time of the caller's wait for an update before begin_save or save, part of no other time here.
  Seconds waited{};
  Bytes bytes{};        ///< written by this rank
  Bytes referred{};     ///< bytes by reference, of all ranks
  bool in_two_parts{};  ///< it was made by begin_save and finish_save
};

/// Figures of one copy to partners.
struct CopyStats {
  std::int64_t step{};
  Bytes bytes{};  ///< bytes of all nodes
  Seconds seconds{};
};

}  // namespace offstage::checkpoint
