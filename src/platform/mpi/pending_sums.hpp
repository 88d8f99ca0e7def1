#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "platform/mpi/communicator.hpp"

namespace offstage::mpi {

/// Sums over all ranks that are under way while the caller does something else. They are no
/// progress of a process that hangs (base/watch.hpp), as blocking calls would be.
///
/// Collective: construction. Threads: as Communicator. Errors: MpiError.
class PendingSums {
 public:
  /// Returns at once. `mine`: as many numbers on every rank.
  PendingSums(Communicator const& comm, std::vector<std::int64_t> mine);
  /// Where they are still under way their memory stays until the process ends.
  ~PendingSums();
  PendingSums(PendingSums const&) = delete;
  PendingSums& operator=(PendingSums const&) = delete;

  /// Looks, does not wait.
  [[nodiscard]] bool has_ended();
  /// Once has_ended() was true.
  [[nodiscard]] std::vector<std::int64_t> const& sums() const noexcept { return memory_->sums; }

 private:
  struct Memory {
    std::vector<std::int64_t> mine;
    std::vector<std::int64_t> sums;
  };
  std::unique_ptr<Memory> memory_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace offstage::mpi
