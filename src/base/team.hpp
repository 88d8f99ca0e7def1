#pragma once

namespace offstage {

/// Threads of the calling thread's next OpenMP team; 1 where OpenMP is not compiled.
[[nodiscard]] int team_size() noexcept;
/// Sets it and makes the team, of the calling thread alone: a new thread begins with every core
/// there is.
/// Errors: IoError if so many threads cannot be started now: OpenMP itself would end the process
///         where a team lacks one.
void set_team_size(int threads);
/// For a team of the size that it has, without making it: costs nothing once set_team_size has made
/// it. Errors: as above.
void require_team();

}  // namespace offstage
