#pragma once

#include <array>
#include <span>

#include "device/device.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/exchange.hpp"
#include "state/shard.hpp"

namespace offstage::state {

/// This rank's shard of the parameters in the type that forward and backward use, and the gathering
/// of whole layers from all ranks' shards into device memory.
///
/// Memory:     host: sizeof(T) per element of the shard; device: two layers.
/// Collective: acquire.
template <class T>
class WorkingCopy final : public ParameterSource<T> {
 public:
  WorkingCopy(ShardMap const& map, mpi::Communicator const& comm, device::Device& device,
              device::Stream& stream);

  [[nodiscard]] std::span<T const> acquire(int layer) override;
  void release(int layer) override;

  /// The whole shard, shard_elements long: the update writes new parameters here.
  [[nodiscard]] std::span<T> shard() noexcept { return shard_.template as<T>(); }

 private:
  struct Slot {
    int layer = -1;
    device::Buffer buffer;
  };

  ShardMap const& map_;
  mpi::Communicator const& comm_;
  device::Stream& stream_;
  memory::HugeBuffer shard_;
  memory::HugeBuffer staging_;  ///< one gathered layer on the host; empty if the device is the host
  std::array<Slot, 2> slots_;
};

}  // namespace offstage::state
