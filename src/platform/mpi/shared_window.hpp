#pragma once

#include <mpi.h>

#include <cstddef>
#include <span>

#include "base/units.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::mpi {

/// Memory that the ranks of one node share (MPI_Win_allocate_shared): the same bytes in every
/// process, zero at first, aligned to a cache line. Used without further MPI calls, by atomics that
/// need no lock, for as long as the window lives.
///
/// Collective: construction and destruction, over `node` (see Communicator::split_by_node), which
///             waits for the others. While an exception unwinds, which may be on one rank alone,
///             the destructor leaves the window to the end of the process.
/// Errors:     MpiError, for example where /dev/shm is full.
class SharedWindow {
 public:
  SharedWindow(Communicator const& node, Bytes size);
  ~SharedWindow();
  SharedWindow(SharedWindow const&) = delete;
  SharedWindow& operator=(SharedWindow const&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  int exceptions_;  ///< exceptions that were under way at construction
  MPI_Win window_ = MPI_WIN_NULL;
  std::span<std::byte> bytes_;
};

}  // namespace offstage::mpi
