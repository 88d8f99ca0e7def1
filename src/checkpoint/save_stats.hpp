#pragma once

#include <cstdint>
#include <string>

#include "base/units.hpp"

namespace offstage::checkpoint {

/// What one save did.
struct SaveStats {
  std::string path;
  Seconds seconds{};  ///< of the work, of the rank that took longest
  Seconds paused{};   ///< of `seconds`, what a rate made it longer: a save that hurries does not
  Seconds stood_still{};  ///< inside begin_save and finish_save, waiting for other ranks included
  Bytes bytes{};          ///< written by this rank
  Bytes referred{};       ///< here by reference, of all ranks
  bool in_two_parts{};    ///< by begin_save and finish_save
};

/// Figures of one copy to partners.
struct CopyStats {
  std::int64_t step{};
  Bytes bytes{};  ///< of all nodes
  Seconds seconds{};
};

}  // namespace offstage::checkpoint
