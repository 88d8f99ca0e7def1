#pragma once

#include <cstdint>

namespace offstage {

/// A stand-in for the matrix unit AMX on a CPU that does not have it: while one lives, each of its
/// instructions that bf16 products need is carried out by a handler of SIGILL, as Intel's manual
/// (volume 2) describes it, on any thread. What a real CPU would refuse (registers that are not
/// configured, a wrong configuration) ends the process with a message. One at a time.
class AmxOnCpu {
 public:
  AmxOnCpu();
  ~AmxOnCpu();
  AmxOnCpu(AmxOnCpu const&) = delete;
  AmxOnCpu& operator=(AmxOnCpu const&) = delete;

  /// Products of tiles so far.
  [[nodiscard]] static std::int64_t products();
};

}  // namespace offstage
