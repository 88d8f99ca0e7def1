#pragma once

#include <thread>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/pauses.hpp"
#include "checkpoint/master.hpp"

namespace offstage::checkpoint {

/// Calls read() until it succeeds or no try is left. A read that the system refused is tried again
/// after each of `pauses_between_tries`. A file that seems damaged is read a second time.
/// Errors: those of the last try. IoError: nothing is known of the contents. DataError: they were
///         wrong twice. Refused is thrown at once.
template <class Read>
decltype(auto) read_patiently(Read&& read) {
  bool doubted = false;
  for (auto pause = pauses_between_tries.begin();;) {
    try {
      return read();
    } catch (Refused const&) {
      throw;
    } catch (DataError const&) {
      if (doubted) {
        throw;
      }
      doubted = true;
    } catch (IoError const& error) {
      if (pause == pauses_between_tries.end()) {
        throw;
      }
      log::warning("{}; trying again", error.what());
      std::this_thread::sleep_for(*pause++);
    }
  }
}

}  // namespace offstage::checkpoint
