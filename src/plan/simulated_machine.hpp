#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.hpp"
#include "plan/machine.hpp"
#include "plan/simulation.hpp"
#include "plan/virtual_time.hpp"

namespace offstage::plan {

/// The user of a resource, for the events. Without a row a trace does not show it.
struct Label {
  std::string_view row{}, name{};
  std::int64_t key = -1;
};

/// The resources of a rank under virtual time. Members return when the work is done.
class SimulatedMachine {
 public:
  /// `events` may be null, and must outlive the machine.
  SimulatedMachine(VirtualTime& time, Machine const& machine,
                   std::vector<SimulatedEvent>* events = nullptr);

  [[nodiscard]] auto compute(double flops) {
    return products_.serve(seconds(flops, machine_.compute));
  }
  [[nodiscard]] auto update_on_cores(std::int64_t elements) {
    return cores_.serve(seconds(static_cast<double>(elements), machine_.rates.cpu_update));
  }
  [[nodiscard]] auto update_on_device(std::int64_t elements, std::int64_t subgroup) {
    return device_update_.serve(
        booked(device_update_, seconds(static_cast<double>(elements), machine_.rates.device_update),
               {"device update", "update", subgroup}));
  }
  /// Sums gradients; the cores read and write `bytes`.
  [[nodiscard]] auto sum(double bytes) {
    summed_ = summed_ || bytes > 0.0;
    return sums_.serve(seconds(bytes, machine_.host_sum));
  }
  [[nodiscard]] auto between_ranks(double bytes) {
    passed_ = passed_ || bytes > 0.0;
    return ranks_.serve(seconds(bytes, machine_.rank_link));
  }
  [[nodiscard]] auto to_device(double bytes, Label const& label = {}) {
    touch_host(bytes);
    UpdateRates const& rates = machine_.rates;
    double const taken =
        link_seconds(bytes, rates.host_to_device, rates.host_to_device_both, to_device_, to_host_);
    return to_device_.serve(booked(to_device_, taken, label, bytes));
  }
  [[nodiscard]] auto to_host(double bytes, Label const& label = {}) {
    touch_host(bytes);
    UpdateRates const& rates = machine_.rates;
    double const taken =
        link_seconds(bytes, rates.device_to_host, rates.device_to_host_both, to_host_, to_device_);
    return to_host_.serve(booked(to_host_, taken, label, bytes));
  }
  /// Counts bytes of host memory that other resources' work has read or written.
  void touch_host(double bytes) { host_bytes_ += bytes; }

  [[nodiscard]] std::size_t paths() const { return paths_.size(); }
  [[nodiscard]] Task read(std::size_t path, double bytes);
  [[nodiscard]] Task write(std::size_t path, double bytes);

  [[nodiscard]] double now() const { return time_.now(); }
  /// Number of events so far.
  [[nodiscard]] std::size_t recorded() const { return events_ != nullptr ? events_->size() : 0; }
  /// Records the begin of an event, for ended().
  [[nodiscard]] std::size_t begun(Label const& label);
  void ended(std::size_t event);
  /// Records an event from `begin` to `end`.
  void record(Label const& label, double begin, double end, double bytes = -1.0);

  /// Bytes that each path has moved so far.
  [[nodiscard]] std::vector<PathUse> moved() const;
  /// Seconds for which each resource was in use so far, in a fixed order; host memory last.
  [[nodiscard]] std::vector<ResourceUse> uses() const;
  /// Kinds for Prediction::untimed, of the step so far.
  [[nodiscard]] std::vector<Resource::Kind> untimed() const;

 private:
  struct Path {
    PathRate rate;
    Server reads, writes;  ///< on a half-duplex path `reads` alone serves both
    PathUse moved{};
  };
  /// Returns the seconds, and records them as the server's next work.
  double booked(Server const& server, double seconds, Label const& label, double bytes = -1.0) {
    record(label, server.begin(), server.begin() + seconds, bytes);
    return seconds;
  }
  [[nodiscard]] static double seconds(double amount, double rate) {
    return rate > 0.0 ? amount / rate : 0.0;
  }
  [[nodiscard]] static double link_seconds(double bytes, double alone, double both, Server& mine,
                                           Server& other) {
    bool const shared = both > 0.0 && other.begin() > mine.begin();
    return seconds(bytes, shared ? both : alone);
  }
  /// `row` and `name` are the event's.
  [[nodiscard]] Task transfer(Server& server, double bytes, double rate, std::string row,
                              std::string_view name);

  VirtualTime& time_;
  Machine machine_;
  std::vector<SimulatedEvent>* events_;
  Server products_, device_update_, cores_, sums_, ranks_, to_device_, to_host_;
  std::vector<Path> paths_;
  double host_bytes_ = 0.0;
  bool summed_ = false;  ///< the cores have added gradients
  bool passed_ = false;  ///< ranks have passed bytes to each other
};

/// Extents of one kind under virtual time, in host memory and on paths, as with
/// tiers::make_virtual_tiers.
class SimulatedExtents {
 public:
  struct Settings {
    std::string name{};  ///< name in the events: "state"
    /// All extents have a first version, made in ascending order. Gradients have none.
    bool made = false;
    std::vector<double> bytes{};  ///< bytes of each extent
    std::int64_t buffers{};       ///< extents in flight; 0: all extents are always in memory
    std::int64_t cached{};        ///< extents that stay in memory beside
    std::int64_t spares{};        ///< versions on trial in memory, beside those that they replace
    bool spare_slots = false;     ///< storage has room for them, too
    Evict evict = Evict::farthest;
    std::vector<double> weights{};  ///< weights of the paths
    PathSharer sharer{};
  };
  SimulatedExtents(VirtualTime& time, SimulatedMachine& machine, Settings settings);

  void begin_pass();
  [[nodiscard]] bool in_memory(std::int64_t key) const {
    return settings_.buffers == 0 || extents_[index(key)].in_memory;
  }
  /// Returns whether take_spare would find one.
  [[nodiscard]] bool has_spare(std::int64_t key) const {
    return in_memory(key) ? spares_left_ > 0 : settings_.spare_slots;
  }
  /// Returns whether a lease of the key may be on trial. If so, one spare is taken until the next
  /// pass.
  [[nodiscard]] bool take_spare(std::int64_t key);
  [[nodiscard]] Task fetch(std::int64_t key);
  [[nodiscard]] Task create(std::int64_t key);
  /// Ends the lease with a new version.
  [[nodiscard]] Task commit(std::int64_t key);
  /// Ends the lease without a new version.
  void discard(std::int64_t key);

 private:
  struct Extent {
    bool in_memory = false;  ///< the current version is in memory
    bool lent = false, leaving = false;
    std::size_t path{};
    bool stored = false;  ///< the current version is on that path
  };
  [[nodiscard]] static std::size_t index(std::int64_t key) { return static_cast<std::size_t>(key); }
  [[nodiscard]] std::size_t next() const;
  /// Takes a new version of the key into memory.
  void take(std::int64_t key);
  /// The extent that has to leave now, if there is one. It is on a path from then on.
  [[nodiscard]] std::optional<std::int64_t> leaving();

  SimulatedMachine& machine_;
  Settings settings_;
  std::vector<Extent> extents_;
  std::vector<std::int64_t> counts_;  ///< extents on each path
  ExtentCache cache_;
  Tokens buffers_;
  Change written_;
  std::int64_t spares_left_{};
  std::string row_;  ///< row of the events
};

}  // namespace offstage::plan
