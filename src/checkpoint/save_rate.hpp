#pragma once

namespace offstage::checkpoint {

/// The rate at which this rank writes held versions beside updates.
struct SaveRate {
  double bytes_per_second{};  ///< 0: a save ends before the next update
  double of_paths{};          ///< at most this part of a path's read rate; 0: no such limit
};

}  // namespace offstage::checkpoint
