#pragma once

namespace offstage {

constexpr int most_tries = 20;

/// True once `holds()` is, after 20 tries at most. For measurements of an emulated rate: a busy
/// machine disturbs most of them and not all; a measurement that is wrong fails every time.
template <class Holds>
bool holds_in_some_try(Holds&& holds) {
  for (int i = 0; i < most_tries; ++i) {
    if (holds()) {
      return true;
    }
  }
  return false;
}

/// Whether a measured rate is that of an emulation. Sleeps may end late, and what follows then
/// makes up for it.
inline bool is_about(double measured, double rate) {
  return 0.5 * rate < measured && measured < 2.0 * rate;
}

}  // namespace offstage
