#pragma once

#include <fmt/format.h>

#include <exception>
#include <string>

#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/team.hpp"
#include "cli/commands.hpp"
#include "platform/h5/file.hpp"
#include "platform/mpi/communicator.hpp"
#include "platform/mpi/session.hpp"

namespace offstage::cli {

/// "rank 1 on node2: ", in front of an error.
[[nodiscard]] inline std::string words_for_rank(int rank, std::string const& host) {
  return fmt::format("rank {}{}{}: ", rank, host.empty() ? "" : " on ", printable(host));
}

/// Runs `work()` of a rank and returns its exit code. Rank 0 prints an error on which all ranks
/// agree, once. An error of one rank alone ends the whole job.
template <class Work>
ExitCode together(mpi::Communicator const& comm, Work&& work) {
  try {
    return work();
  } catch (mpi::AgreedError const& error) {
    if (comm.rank() == 0) {
      int const rank = error.failed_rank();
      log::error("{}{}", rank == 0 ? std::string{} : words_for_rank(rank, error.host()),
                 error.what());
    }
    return error.code();
  } catch (...) {
    if (comm.size() == 1) {
      return report(std::current_exception());
    }
    // This rank alone knows of the error; the others would wait for it for ever.
    auto const code =
        report(std::current_exception(), words_for_rank(comm.rank(), mpi::processor_name()));
    mpi::abort_job(static_cast<int>(code));
  }
}

/// Starts MPI, runs `work(comm)` on all ranks, and ends MPI. Errors: as together().
template <class Work>
ExitCode on_all_ranks(Work&& work) {
  h5::prepare_library();
  mpi::Session const session;
  auto const comm = mpi::Communicator::world();
  return together(comm, [&] {
    require_team();
    work(comm);
    return ExitCode::done;
  });
}

}  // namespace offstage::cli
