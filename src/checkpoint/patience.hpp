#pragma once

#include <array>
#include <thread>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "checkpoint/master.hpp"

namespace offstage::checkpoint {

/// Pauses before the second try to read, the third and so on. They are for a file system that fails
/// over, or a table of open files that is full for a moment.
constexpr std::array read_pauses{Seconds{0.1}, Seconds{0.4}, Seconds{1.5}};

/// Calls read() until it succeeds or no try is left. A read that the system refused is tried again
/// after each of `read_pauses`. A file that seems damaged is read a second time.
/// Errors: those of the last try. IoError: nothing is known of the contents. DataError: they were
///         wrong twice. Refused is thrown at once.
template <class Read>
decltype(auto) read_patiently(Read&& read) {
  bool doubted = false;
  for (auto pause = read_pauses.begin();;) {
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
      if (pause == read_pauses.end()) {
        throw;
      }
      log::warning("{}; trying again", error.what());
      std::this_thread::sleep_for(*pause++);
    }
  }
}

}  // namespace offstage::checkpoint
