#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/state_layout.hpp"
#include "device/device.hpp"
#include "device/memory_counter.hpp"
#include "kernels/optimizer/optimizer.hpp"
#include "parameters/target.hpp"
#include "platform/trace/trace.hpp"
#include "state/shard.hpp"
#include "update/chunk_buffers.hpp"
#include "update/gradients/lease.hpp"
#include "update/lane_figures.hpp"
#include "update/parameter_sender.hpp"
#include "update/subgroup_step.hpp"

namespace offstage::update {

struct DeviceLaneSettings {
  StateLayout layout = adamw_layout();
  /// Elements that go to the device at a time, whole chunks. The CPU's new parameters go in such
  /// pieces too.
  std::int64_t chunk = std::int64_t{4} << 20U;
  /// Chunks on the device at a time: brought, updated, taken back, one to spare. 0: it updates
  /// nothing.
  int buffers = 4;
  int parameter_buffers = 3;  ///< chunks of the CPU's new parameters on their way
  Bytes gradient_bytes = 4;   ///< bytes of a gradient's element, as the updates will give them
  Bytes parameter_bytes = 4;  ///< bytes of an element of the working copy
  /// New parameters go to host memory: a buffer has room for a chunk of them, and the CPU's are not
  /// staged.
  bool parameters_on_host = false;
  /// Device memory that lies idle between backward and the next forward (activations). Buffers are
  /// taken from it before any is allocated. They are empty when Update::run returns. No work that
  /// uses the memory is under way when an update begins.
  std::span<std::byte> lent;
};

/// The device's side of an update: the optimizer on a device over state that waits in host memory,
/// and the way of the CPU's new parameters to the device.
///
/// A subgroup's planes and gradient go to the device chunk by chunk on one stream, are updated on a
/// second and come back on a third, so both directions of the link and the kernel are busy at once.
/// New parameters of CPU-updated subgroups have a fourth stream. A chunk needs one buffer of device
/// memory, so the memory needed does not depend on the subgroup size.
///
/// Source:  DOS sections 4.1 and 4.3, Algorithm 1.
/// Memory:  device: buffers * chunk * (layout's bytes + gradient_bytes, and parameter_bytes with
///          parameters_on_host), less lent memory. Host: pinned, parameter_buffers * chunk *
///          parameter_bytes; none with parameters_on_host, or if the device is host_visible.
/// Threads: any; calls feed the device one after the other and wait side by side.
/// Waiting: a caller needs nothing but what the streams give back by themselves.
/// Trace:   rows "host to device", "device update", "device to host", "parameters to device";
///          `memory` is told of buffers in use.
/// Errors:  construction: UsageError of the device (names update.device-share,
///          update.device-chunk). Members: what the streams throw, when none has work left that
///          touches the caller's memory.
class DeviceLane {
 public:
  DeviceLane(device::Device& device, DeviceLaneSettings const& settings,
             trace::Trace* trace = nullptr, device::MemoryCounter* memory = nullptr);
  ~DeviceLane();
  DeviceLane(DeviceLane const&) = delete;
  DeviceLane& operator=(DeviceLane const&) = delete;

  /// Updates a subgroup. Its state, in host memory (pinned for full speed), is changed in place.
  /// New parameters go to `target`, which is read first where it has their upper halves; its lease
  /// is left alone. Returns when everything is where it belongs.
  /// Errors: PreconditionError: a target in host memory without settings.parameters_on_host.
  void update(state::Subgroup const& subgroup, std::span<std::byte> state,
              kernels::GradientView const& gradient, parameters::Target const& target,
              kernels::OptimizerStep const& step, GradientPlace place = GradientPlace::host);
  /// Updates a subgroup whose state is in device memory. Only the gradient crosses the link, unless
  /// it is there too, and new parameters whose target lies beyond it.
  void update_resident(state::Subgroup const& subgroup, std::span<std::byte> state,
                       kernels::GradientView const& gradient, parameters::Target const& target,
                       kernels::OptimizerStep const& step,
                       GradientPlace place = GradientPlace::host);

  /// Returns host memory for new parameters, elements [begin, begin + count) of `target`, which is
  /// device memory. `count` is at most a chunk. Blocks until a place is free.
  [[nodiscard]] kernels::WorkingCopyView staging(kernels::WorkingCopyView target,
                                                 std::int64_t begin, std::int64_t count);
  /// Sends the parameters that fill the last staging() to their place in the target. The returned
  /// event says when they are there. One thread calls staging and send.
  [[nodiscard]] std::shared_ptr<device::Event> send();

  /// Returns whether the CPU's new parameters for targets in device memory go by staging and send.
  /// Otherwise they go straight there, since the device is host_visible. With parameters_on_host
  /// there are no such targets.
  [[nodiscard]] bool stages() const noexcept { return sender_ != nullptr; }

  /// Uses lent memory again, as from construction on.
  void use_lent() { buffers_.use_lent(); }
  /// Empties lent memory, which is not used until use_lent. Updates under way go on through the
  /// other buffers.
  void leave_lent();
  /// Returns whether there are buffers beside those in lent memory. Without them no update may go
  /// on after leave_lent.
  [[nodiscard]] bool any_own_buffers() const noexcept { return buffers_.any_own(); }

  /// Returns when no stream has work left. Errors are lost.
  void settle() noexcept;
  /// Figures of updates that have returned, and of parameters that were sent, for which it waits.
  [[nodiscard]] DeviceLaneStats stats() const;
  [[nodiscard]] DeviceLaneSettings const& settings() const noexcept { return settings_; }
  [[nodiscard]] static Bytes device_bytes(DeviceLaneSettings const& settings);
  [[nodiscard]] static Bytes host_bytes(DeviceLaneSettings const& settings, bool host_visible);

 private:
  struct Job;
  /// A chunk's way, queued.
  struct Fed {
    Stretch brought, updated, returned;
    Bytes brought_bytes{}, returned_bytes{};
    std::int64_t elements{};
    device::MemoryCounter::Clock::time_point taken;     ///< its buffer
    std::optional<device::MemoryCounter::User> buffer;  ///< none: it needs no buffer
  };
  void run(Job const& job);
  /// The caller has feed_mutex_.
  void settle_streams() noexcept;
  [[nodiscard]] Fed feed(Job const& job, Range range);
  [[nodiscard]] Fed feed_through(std::optional<ChunkBuffers::Taken>& buffer, Job const& job,
                                 Range range);
  /// The way back of the state and of parameters that the device cannot write to their target, once
  /// `updated`. `there`: on the device.
  void take_back(Job const& job, Range range, StateViews const& there, std::byte const* parameters,
                 Fed& fed);
  void count(state::Subgroup const& subgroup, std::vector<Fed> const& chunks);

  DeviceLaneSettings settings_;
  LaneFigures figures_;
  device::MemoryCounter* memory_;
  ChunkBuffers buffers_;
  std::unique_ptr<ParameterSender> sender_;  ///< null: nothing is staged
  std::mutex feed_mutex_;  ///< guards the streams, and makes its holder the one who takes buffers
  std::unique_ptr<device::Stream> bring_, update_, return_;
};

}  // namespace offstage::update
