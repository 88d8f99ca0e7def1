#pragma once

#include <memory>
#include <span>
#include <utility>

#include "device/device.hpp"
#include "parameters/host_home.hpp"
#include "parameters/target.hpp"
#include "platform/trace/trace.hpp"
#include "state/exchange.hpp"
#include "state/rank_link.hpp"
#include "state/readiness.hpp"
#include "state/shard.hpp"
#include "state/working_copy.hpp"

namespace offstage::parameters {

/// A rank's working copy in any place. It gives layers to the model, and takes new parameters from
/// updates.
///
/// Order:      a copy that is not on the device has to know the uses of layers beforehand: begin,
///             then expect, then the layers are acquired in exactly that order. No update begins to
///             change a layer that is expected. The copy waits for an update that began before.
/// Collective: acquire.
/// Errors:     acquire: the error of a failed update, path or stream; PreconditionError: the layer
///             is not the next one expected (a slower way would hide the mistake), or two are held
///             already.
template <class T>
class WorkingParameters : public state::ParameterSource<T> {
 public:
  /// Says that parameters may have changed. Every expected layer has been acquired and released.
  virtual void begin() {}
  /// Announces that these layers will be acquired in this order, after those that were expected
  /// before.
  virtual void expect(std::span<int const> /*layers*/) {}
  /// The target of the subgroup's new parameters. Threads: any.
  [[nodiscard]] virtual Target target(state::Subgroup const& subgroup) = 0;
  /// Fills the subgroup's part with these parameters, rounded to T. Returns when done. No layer of
  /// the subgroup is expected.
  virtual void fill(state::Subgroup const& subgroup, std::span<float const> parameters);
  /// Sets the object whose wait comes before a layer is used; null: everything is always ready. No
  /// layer is expected.
  virtual void set_readiness(state::Readiness* readiness) = 0;
  /// Ends the threads that work ahead of use, before the readiness ends, which then fails their
  /// waits. Targets remain valid; no layer is acquired any more.
  virtual void stop() noexcept {}
};

/// A working copy in device memory (Home::device).
template <class T>
class DeviceParameters final : public WorkingParameters<T> {
 public:
  /// `slots` is the number of slots for gathered layers (state::WorkingCopy). `trace` shows layers
  /// that come from other ranks; null: no trace.
  DeviceParameters(state::ShardMap const& map, state::RankLink& link, device::Device& device,
                   device::Stream& stream, int slots = state::WorkingCopy<T>::least_slots,
                   trace::Trace* trace = nullptr)
      : trace_{trace}, copy_{map, link, device, stream, slots} {}

  void begin() override { copy_.begin(); }
  [[nodiscard]] std::span<T const> acquire(int layer) override {
    auto* const trace = copy_.gathers(layer) ? trace_ : nullptr;
    trace::Scope const scope{trace, "parameters from ranks", "bring", layer};
    return copy_.acquire(layer);
  }
  void release(int layer, std::shared_ptr<device::Event> done) override {
    copy_.release(layer, std::move(done));
  }
  [[nodiscard]] Target target(state::Subgroup const& subgroup) override;
  void fill(state::Subgroup const& subgroup, std::span<float const> parameters) override;
  void set_readiness(state::Readiness* readiness) override { copy_.set_readiness(readiness); }

 private:
  trace::Trace* trace_;
  state::WorkingCopy<T> copy_;
};

/// A working copy in host memory that the device uses as its own, for one rank. Layers are used in
/// place.
template <class T>
class HostParameters final : public WorkingParameters<T> {
 public:
  HostParameters(state::ShardMap const& map, device::Device& device) : home_{map, 0, device} {}

  [[nodiscard]] std::span<T const> acquire(int layer) override { return home_.part(layer); }
  void release(int /*layer*/, std::shared_ptr<device::Event> /*done*/) override {}
  [[nodiscard]] Target target(state::Subgroup const& subgroup) override {
    return home_.target(subgroup);
  }
  void set_readiness(state::Readiness* readiness) override { home_.set_readiness(readiness); }

 private:
  HostHome<T> home_;
};

}  // namespace offstage::parameters
