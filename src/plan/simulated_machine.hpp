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

/// Who uses a resource, for the events. No row: nobody that a trace shows.
struct Label {
  std::string_view row{}, name{};
  std::int64_t key = -1;
};

/// The resources of a rank under virtual time. Members return when the work is done.
class SimulatedMachine {
 public:
  /// `events`: null: nobody wants them. Outlives the machine.
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
  /// `bytes`: that the cores read and write.
  [[nodiscard]] auto sum(double bytes) { return sums_.serve(seconds(bytes, machine_.host_sum)); }
  [[nodiscard]] auto between_ranks(double bytes) {
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
  /// Host memory that work of others has read or written.
  void touch_host(double bytes) { host_bytes_ += bytes; }

  [[nodiscard]] std::size_t paths() const { return paths_.size(); }
  [[nodiscard]] Task read(std::size_t path, double bytes);
  [[nodiscard]] Task write(std::size_t path, double bytes);

  [[nodiscard]] double now() const { return time_.now(); }
  /// Events so far.
  [[nodiscard]] std::size_t recorded() const { return events_ != nullptr ? events_->size() : 0; }
  /// Something that begins now, for ended().
  [[nodiscard]] std::size_t begun(Label const& label);
  void ended(std::size_t event);
  /// Something that was from `begin` to `end`.
  void record(Label const& label, double begin, double end, double bytes = -1.0);

  /// Bytes that each path has moved so far.
  [[nodiscard]] std::vector<PathUse> moved() const;
  /// Seconds that each resource was given to somebody so far, in a fixed order; host memory last.
  [[nodiscard]] std::vector<ResourceUse> uses() const;

 private:
  struct Path {
    PathRate rate;
    Server reads, writes;  ///< half duplex: reads alone
    PathUse moved{};
  };
  /// The seconds, recorded as what the server does next.
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
  /// `row` and `name`: of the events.
  [[nodiscard]] Task transfer(Server& server, double bytes, double rate, std::string row,
                              std::string_view name);

  VirtualTime& time_;
  Machine machine_;
  std::vector<SimulatedEvent>* events_;
  Server products_, device_update_, cores_, sums_, ranks_, to_device_, to_host_;
  std::vector<Path> paths_;
  double host_bytes_ = 0.0;
};

/// Extents of one kind under virtual time, in host memory and on paths: what
/// tiers::make_virtual_tiers does.
class SimulatedExtents {
 public:
  struct Settings {
    std::string name{};         ///< in the events: "state"
    bool made = false;          ///< all have a first version, made in ascending order
    std::vector<double> bytes;  ///< bytes of each extent
    std::int64_t buffers{};     ///< in flight; 0: all extents are in memory for good
    std::int64_t cached{};      ///< extents that stay in memory beside
    std::int64_t spares{};      ///< versions on trial beside those that they replace, in memory
    bool spare_slots = false;   ///< and on storage
    Evict evict = Evict::farthest;
    std::vector<double> weights{};  ///< weights of the paths
    PathSharer sharer{};
  };
  SimulatedExtents(VirtualTime& time, SimulatedMachine& machine, Settings settings);

  void begin_pass();
  [[nodiscard]] bool in_memory(std::int64_t key) const {
    return settings_.buffers == 0 || extents_[index(key)].in_memory;
  }
  /// Whether a lease of it may be on trial; then one spare is taken until the next pass.
  [[nodiscard]] bool take_spare(std::int64_t key);
  [[nodiscard]] Task fetch(std::int64_t key);
  [[nodiscard]] Task create(std::int64_t key);
  /// The lease ends, with a new version.
  [[nodiscard]] Task commit(std::int64_t key);
  /// Without one.
  void discard(std::int64_t key);

 private:
  struct Extent {
    bool in_memory = false;  ///< the current version
    bool lent = false, leaving = false;
    std::size_t path{};
    bool stored = false;  ///< there
  };
  [[nodiscard]] static std::size_t index(std::int64_t key) { return static_cast<std::size_t>(key); }
  [[nodiscard]] std::size_t next() const;
  /// A new version of the key is there.
  void take(std::int64_t key);
  /// The extent that has to leave now, if there is one: it is on a path from then on.
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
