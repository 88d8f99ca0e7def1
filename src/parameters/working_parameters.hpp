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

/// A rank's working copy, wherever it lives: gives layers to the model, takes new parameters from updates.
///
/// Order:      what is not on the device has to know the uses of layers beforehand: begin, then expect, then
///             the layers are acquired in just that order. No update begins to change a layer that is
///             expected; one that began before is waited for.
/// Collective: acquire.
/// Errors:     acquire: what an update, a path or a stream failed with; PreconditionError: another layer than
///             the next one expected (a slower way would hide the mistake), or a third one held.
template <class T>
class WorkingParameters : public state::ParameterSource<T> {
 public:
  /// All that was expected has been acquired and released. Parameters may have changed since.
  virtual void begin() {}
  /// These layers will be acquired, in this order, after those that were expected before.
  virtual void expect(std::span<int const> /*layers*/) {}
  /// Where an update puts the subgroup's new parameters. Threads: any.
  [[nodiscard]] virtual Target target(state::Subgroup const& subgroup) = 0;
  /// Fills the subgroup's part with these, rounded to T; returns when done. No layer of it is expected.
  virtual void fill(state::Subgroup const& subgroup, std::span<float const> parameters);
  /// Whose wait comes before a layer is used; null: everything is always ready. No layer is expected.
  virtual void set_readiness(state::Readiness* readiness) = 0;
  /// Ends what runs ahead of use, before the readiness ends, which it fails. Targets remain; no layer is
  /// acquired any more.
  virtual void stop() noexcept {}
};

/// In device memory (Home::device).
template <class T>
class DeviceParameters final : public WorkingParameters<T> {
 public:
  /// `slots`: of layers that are gathered (state::WorkingCopy). `trace`: null: none. Shows layers
  /// that come from other ranks.
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

/// In host memory that the device uses as its own, of a rank alone: layers are used where they are.
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
