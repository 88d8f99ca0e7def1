#pragma once

#include <array>
#include <cerrno>
#include <thread>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/units.hpp"

namespace offstage {

/// Pauses before the second try, the third and so on of what a file system refused. They are for
/// one that fails over or has evicted this client, for a drive that is being reset, or for a table
/// of open files that is full for a moment.
constexpr std::array pauses_between_tries{Seconds{0.1}, Seconds{0.4}, Seconds{1.5}};

/// True for an errno of a file system that may end by itself: of a client that it has evicted
/// (Lustre: EIO, ESHUTDOWN), of a server or a drive that is away for a moment.
[[nodiscard]] constexpr bool ends_by_itself(int error_number) {
  switch (error_number) {
    case EIO:
    case ESHUTDOWN:
    case ENOTCONN:
    case ETIMEDOUT:
    case ENOLINK:
    case EREMOTEIO:
    case ESTALE:
      return true;
    default:
      return false;
  }
}

/// Calls work() until it succeeds or no try is left. After an IoError it is called again behind
/// each of the pauses, with a warning. Errors: those of the last try; other errors at once.
template <class Work>
decltype(auto) try_patiently(Work&& work) {
  for (auto pause = pauses_between_tries.begin();;) {
    try {
      return work();
    } catch (IoError const& error) {
      if (pause == pauses_between_tries.end()) {
        throw;
      }
      log::warning("{}; trying again", error.what());
      std::this_thread::sleep_for(*pause++);
    }
  }
}

}  // namespace offstage
