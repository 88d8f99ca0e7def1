#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "base/units.hpp"

namespace offstage {

/// Says, while it lives, what this thread waits for or works on: "all_gather of layer 3". Nests; the
/// innermost counts. Beginning and end are progress. Costs two uncontended stores; `what` must outlive
/// it (a literal).
class Waiting {
 public:
  explicit Waiting(char const* what, std::int64_t detail = -1) noexcept;
  ~Waiting();
  Waiting(Waiting const&) = delete;
  Waiting& operator=(Waiting const&) = delete;
};

/// Counts as progress of this process: for loops that neither wait nor return for long.
void made_progress() noexcept;

struct ThreadState {
  std::string thread;  ///< its name
  std::string what;    ///< innermost Waiting with its detail, "running" if none
  Seconds since{};     ///< how long
};
/// All threads that ever had a Waiting and still run. Any thread may ask.
[[nodiscard]] std::vector<ThreadState> thread_states();
/// How long ago any thread made progress.
[[nodiscard]] Seconds since_progress() noexcept;

}  // namespace offstage
