#pragma once

#include <utility>

#include "base/error.hpp"
#include "base/pauses.hpp"
#include "checkpoint/master.hpp"

namespace offstage::checkpoint {

/// A read by try_patiently. A file that seems damaged is read a second time.
/// Errors: IoError: nothing is known of the contents. DataError: they were wrong twice. Refused is
///         thrown at once.
template <class Read>
decltype(auto) read_patiently(Read&& read) {
  bool doubted = false;
  return try_patiently([&]() -> decltype(auto) {
    try {
      return read();
    } catch (Refused const&) {
      throw;
    } catch (DataError const&) {
      if (std::exchange(doubted, true)) {
        throw;
      }
    }
    return read();
  });
}

}  // namespace offstage::checkpoint
