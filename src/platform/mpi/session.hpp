#pragma once

#include <optional>

namespace offstage::mpi {

/// Returns true if a launcher started this process: each tells the rank in variables of a family of
/// its own. The only task of a step of Slurm counts as a process without launcher.
[[nodiscard]] bool has_launcher() noexcept;

/// Owns MPI: initialises at construction (one thread calls MPI), finalises at destruction. Errors
/// of MPI calls are returned, not fatal, on every communicator made afterwards. A process that no
/// launcher started tells Open MPI, by variables of its environment, that it stays alone: 0.05 s
/// instead of 0.5 to begin. The only task of a step of Slurm also removes the step's variables, so
/// that several commands can follow each other in its shell.
/// Errors: MpiError if MPI is up already or does not come up. Error if it gives no
/// MPI_THREAD_FUNNELED.
class Session {
 public:
  Session();
  ~Session();
  Session(Session const&) = delete;
  Session& operator=(Session const&) = delete;
};

/// Ends all ranks of the job at once with this exit code. Never returns.
[[noreturn]] void abort_job(int exit_code) noexcept;

/// The same from a thread that is not the one which calls MPI and may hang in it, also before MPI
/// is up: where MPI_Abort has not ended this process after a few seconds, or cannot be called, the
/// process ends by itself with this exit code, upon which the launcher ends the others.
[[noreturn]] void abort_stuck_job(int exit_code) noexcept;

/// "Open MPI v4.1.4", for the header.
[[nodiscard]] char const* library_version() noexcept;

/// Whether this MPI takes addresses of GPU memory, as the library in use says (CUDA-aware Open
/// MPI). While there is a Session: before, Open MPI 5 does not know what it will use.
[[nodiscard]] bool takes_device_memory() noexcept;

/// Whether it was built to, which ranks may find to be switched off; null: this MPI does not say
/// (all but Open MPI). Without a Session too; the first call takes some tenths of a second.
[[nodiscard]] std::optional<bool> built_for_device_memory() noexcept;

[[nodiscard]] inline bool is_built_for_device_memory() noexcept {
  return built_for_device_memory().value_or(false);
}

}  // namespace offstage::mpi
