#pragma once

namespace offstage {

/// Threads of the calling thread's next OpenMP team; 1 where OpenMP is not compiled.
[[nodiscard]] int team_size() noexcept;
/// Sets it, of the calling thread alone: a new thread begins with every core there is.
void set_team_size(int threads) noexcept;

}  // namespace offstage
