#pragma once

namespace offstage {

/// Threads of the calling thread's next OpenMP team; 1 where OpenMP is not compiled.
[[nodiscard]] int team_size() noexcept;
/// Sets it and makes the team, of the calling thread alone: a new thread begins with every core
/// there is. The team is as large whatever OMP_DYNAMIC and OMP_MAX_ACTIVE_LEVELS say.
/// Errors: IoError if so many threads cannot be started now: OpenMP itself would end the process
///         where a team lacks one. UsageError if OMP_THREAD_LIMIT lets it have fewer; the size is
///         as before then.
void set_team_size(int threads);
/// The threads of a team that OMP_THREAD_LIMIT allows; the largest number without it.
[[nodiscard]] int most_of_team() noexcept;
/// Makes the calling thread's teams no larger than that and most_of_team(), unless OMP_NUM_THREADS
/// says how large.
void limit_team_size(int most) noexcept;
/// Makes the team of the size that it has; costs nothing once it is made. Errors: as above.
void require_team();

}  // namespace offstage
