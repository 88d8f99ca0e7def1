#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "device/device.hpp"
#include "parameters/shard_home.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "state/shard.hpp"

namespace offstage::parameters {

/// The shard in host memory.
/// Memory: host, pinned: sizeof(T) per element of the shard.
template <class T>
class HostHome final : public ShardHome<T> {
 public:
  using typename ShardHome<T>::Take;

  HostHome(state::ShardMap const& map, int rank, device::Device& device);

  [[nodiscard]] bool stays_in_place() const noexcept override { return true; }
  void bring(int layer, Take const& take) override;
  [[nodiscard]] Target target(state::Subgroup const& subgroup) override;
  void set_readiness(state::Readiness* readiness) override { readiness_ = readiness; }

  /// The rank's part of a layer, in place. Waits until it is ready.
  [[nodiscard]] std::span<T const> part(int layer);

 private:
  state::ShardMap const& map_;
  int rank_;
  bool device_writes_;  ///< the device writes to host memory as to its own
  memory::HugeBuffer shard_;
  std::unique_ptr<device::Pinned> pinned_;
  state::Readiness* readiness_{};
};

}  // namespace offstage::parameters
