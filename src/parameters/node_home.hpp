#pragma once

#include <memory>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "parameters/node_memory.hpp"
#include "parameters/shard_home.hpp"
#include "parameters/working_parameters.hpp"
#include "platform/trace/trace.hpp"
#include "state/shard.hpp"

namespace offstage::parameters {

/// A home of whole layers, in memory that the ranks of a node share (NodeMemory). After each
/// begin() the first use of a layer waits until this rank's part is ready, brings all parts to all
/// nodes, and waits for the node's ranks. Further uses find the layer there, without a message.
///
/// Order:      a rank's update changes a layer only after its last use by any rank. The update
///             needs the complete gradient, to which all ranks have added by then. A rank that is
///             idle in the last round may still bring the layer to its device, and uses nothing of
///             it.
/// Collective: bring and layer, when they are called for a layer the first time after begin().
/// Memory:     on the host, pinned: the NodeMemory, which outlives it.
/// Trace:      row "parameters from ranks".
template <class T>
class NodeHome final : public ShardHome<T> {
 public:
  using typename ShardHome<T>::Take;

  NodeHome(state::ShardMap const& map, int rank, NodeMemory& memory, device::Device& device,
           trace::Trace* trace = nullptr);

  void begin() override;
  [[nodiscard]] bool stays_in_place() const noexcept override { return true; }
  [[nodiscard]] bool has_whole_layers() const noexcept override { return true; }
  /// The whole layer, in one piece that stays.
  void bring(int layer, Take const& take) override;
  [[nodiscard]] Target target(state::Subgroup const& subgroup) override;
  void set_readiness(state::Readiness* readiness) override { readiness_ = readiness; }

  /// Returns a layer in place.
  [[nodiscard]] std::span<T const> layer(int layer);

 private:
  [[nodiscard]] std::span<T> shard() const;

  state::ShardMap const& map_;
  int rank_;
  NodeMemory& memory_;
  trace::Trace* trace_;
  bool device_writes_;      ///< host memory as its own
  std::vector<bool> here_;  ///< layers that were used since begin()
  std::unique_ptr<device::Pinned> pinned_whole_, pinned_shard_;
  state::Readiness* readiness_{};
};

/// Parameters that a node shares (Home::node), for a device that uses host memory as its own.
/// Layers are used in place.
template <class T>
class NodeParameters final : public WorkingParameters<T> {
 public:
  NodeParameters(state::ShardMap const& map, int rank, NodeMemory& memory, device::Device& device,
                 trace::Trace* trace = nullptr)
      : home_{map, rank, memory, device, trace} {}

  void begin() override { home_.begin(); }
  [[nodiscard]] std::span<T const> acquire(int layer) override { return home_.layer(layer); }
  void release(int /*layer*/, std::shared_ptr<device::Event> /*done*/) override {}
  [[nodiscard]] Target target(state::Subgroup const& subgroup) override {
    return home_.target(subgroup);
  }
  void set_readiness(state::Readiness* readiness) override { home_.set_readiness(readiness); }

 private:
  NodeHome<T> home_;
};

}  // namespace offstage::parameters
