#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/slice.hpp"
#include "base/units.hpp"
#include "device/device.hpp"
#include "platform/mpi/communicator.hpp"
#include "platform/nccl/library.hpp"

namespace offstage::state {

/// The route by which layers in device memory go to other ranks.
enum class Route {
  in_place,  ///< host code sees device memory, and MPI reads and writes it there
  staged,    ///< through host memory, by MPI
  direct,    ///< from device memory to device memory, by CUDA-aware MPI or NCCL
};

/// The way between the ranks of a run: layers of parameters go from their owners to all ranks,
/// slices of gradients from all ranks to their owners.
///
/// Memory:     buffers are in device memory, or on the route `staged` in host memory.
/// Order:      work that was enqueued on `stream` before comes first, and later work comes after.
///             NCCL's link enqueues and returns at once. MPI's links wait for the stream and return
///             when the transfer is done.
/// Collective: both calls, in the same order on all ranks, whatever their streams.
/// Threads:    one calls the members, the one that calls MPI.
/// Errors:     MpiError, nccl::NcclError.
class RankLink {
 public:
  RankLink(mpi::Communicator const& comm, Route route) : comm_{comm}, route_{route} {}
  virtual ~RankLink() = default;
  RankLink(RankLink const&) = delete;
  RankLink& operator=(RankLink const&) = delete;

  [[nodiscard]] mpi::Communicator const& comm() const noexcept { return comm_; }
  [[nodiscard]] int rank() const noexcept { return comm_.rank(); }
  [[nodiscard]] int size() const noexcept { return comm_.size(); }
  [[nodiscard]] Route route() const noexcept { return route_; }

  /// Device memory that a library behind the link takes for itself, as set by the maker of the
  /// link.
  [[nodiscard]] Bytes device_bytes() const noexcept { return device_bytes_; }
  void set_device_bytes(Bytes bytes) noexcept { device_bytes_ = bytes; }

  /// Gathers equal parts as mpi::Communicator::all_gather does; this rank's own is filled in
  /// already.
  virtual void all_gather(device::Stream& stream, std::span<std::byte> buffer) = 0;
  /// Exchanges as mpi::Communicator::all_to_all does.
  virtual void all_to_all(device::Stream& stream, std::span<std::byte const> send,
                          std::span<Slice const> send_parts, std::span<std::byte> receive,
                          std::span<Slice const> receive_parts) = 0;
  /// Ends the link. Call it before its streams end; nothing follows. If an exception is unwinding
  /// this thread, queued operations do not wait for other ranks any more, because these may not
  /// come.
  virtual void end() noexcept {}

 private:
  mpi::Communicator const& comm_;
  Route route_;
  Bytes device_bytes_{};
};

/// A link by MPI, on any route; `comm` must outlive it.
[[nodiscard]] std::unique_ptr<RankLink> make_mpi_link(mpi::Communicator const& comm, Route route);

/// A link by NCCL, on the route `direct`; `comm` must outlive it. `stream` is one of this rank's
/// GPU, which no other rank uses. Collective.
/// Errors: nccl::NcclError.
[[nodiscard]] std::unique_ptr<RankLink> make_nccl_link(mpi::Communicator const& comm,
                                                       std::unique_ptr<nccl::Library> library,
                                                       device::Stream& stream);

}  // namespace offstage::state
