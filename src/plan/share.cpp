#include "plan/share.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>

#include "base/error.hpp"

namespace offstage::plan {
namespace {

/// best_share tries so many shares, then those between the neighbours of the best.
constexpr int grid = 256;
constexpr int narrowings = 60;

Seconds time_of(double amount, double rate, char const* missing) {
  if (amount == 0.0) {
    return {};
  }
  require(rate > 0.0, missing);
  return Seconds{amount / rate};
}

/// A rate measured beside other work, which is not above that measured alone; 0: the same as alone.
double shared_rate(double both, double alone) {
  return both > 0.0 && alone > 0.0 ? std::min(both, alone) : alone;
}

/// One update's work: elements by who updates them, and bytes by direction of the link.
struct Work {
  double cpu, device, resident;
  /// Elements whose gradient crosses: all, and resident ones.
  double gradients, resident_gradients;
  double spilled;  ///< elements whose gradient is read from storage
  double to_device, to_host;
  double chunk;           ///< chunk of the elements that go to the device and back; 0: none do
  double resident_chunk;  ///< chunk of the elements that live there
  double copied_chunk;    ///< chunk of the CPU's new parameters

  Work(UpdateDemand const& demand, double share);
};

Work::Work(UpdateDemand const& demand, double share) {
  require(share >= 0.0 && share <= 1.0, "update_times: the share lies in [0, 1]");
  require(demand.resident >= 0.0 && demand.resident <= 1.0,
          "update_times: the resident share lies in [0, 1]");
  require(demand.elements >= 0 && demand.chunk >= 0 && demand.gradient_bytes >= 0 &&
              demand.parameter_bytes >= 0 && demand.state_bytes > 0.0 && demand.held >= 0 &&
              demand.storage.read >= 0 && demand.storage.written >= 0 &&
              demand.storage.spilled >= 0,
          "update_times: sizes are not negative");
  auto const elements = static_cast<double>(demand.elements);
  auto const piece = static_cast<double>(demand.chunk);
  auto const gradient = static_cast<double>(demand.gradient_bytes);
  double const copied = demand.direct_copy ? 0.0 : static_cast<double>(demand.parameter_bytes);
  resident = elements * demand.resident;
  device = (elements - resident) * share;
  cpu = elements - resident - device;
  auto const held = static_cast<double>(demand.held);
  resident_gradients = std::max(0.0, resident - held);
  gradients = std::max(0.0, resident + device - held);
  double const waiting = resident + device - gradients;  // on the device
  spilled = std::max(0.0, static_cast<double>(demand.storage.spilled) - waiting);
  to_device = device * demand.state_bytes + gradients * gradient + cpu * copied;
  to_host = device * demand.state_bytes;
  chunk = std::min(piece, device);
  resident_chunk = std::min(piece, resident);
  copied_chunk = copied > 0.0 ? std::min(piece, cpu) : 0.0;
}

/// Times of one chunk at each resource.
struct ChunkTimes {
  Seconds in{}, kernel{}, out{};
};

class Makespan {
 public:
  Makespan(UpdateDemand const& demand, UpdateRates const& rates, double share)
      : demand_{demand}, rates_{rates}, work_{demand, share} {
    times_.cpu = time_of(work_.cpu, rates.cpu_update, "update_times: cpu_update is not known");
    times_.device = kernel(work_.device + work_.resident);
    set_link();
    set_host_memory();
    set_storage();
  }

  [[nodiscard]] UpdateTimes finished() {
    times_.total = std::max(without_storage(), times_.storage);
    return times_;
  }
  [[nodiscard]] Seconds without_storage() const {
    Seconds const at_once = std::max(with_ends(), times_.host_memory);
    return demand_.transfers == Transfers::blocking ? std::max(at_once, in_turns()) : at_once;
  }

 private:
  [[nodiscard]] Seconds kernel(double elements) const {
    return time_of(elements, rates_.device_update, "update_times: device_update is not known");
  }
  [[nodiscard]] Seconds to_device(double bytes) const {
    return time_of(bytes, rates_.host_to_device, "update_times: host_to_device is not known");
  }
  [[nodiscard]] Seconds to_host(double bytes) const {
    return time_of(bytes, rates_.device_to_host, "update_times: device_to_host is not known");
  }

  /// Sets the link's times. The direction with less to do runs wholly beside the other, which is
  /// faster once it is alone.
  void set_link() {
    if (work_.to_host == 0.0) {
      times_.host_to_device = to_device(work_.to_device);
      return;
    }
    static_cast<void>(to_device(1.0));  // checks that both rates are known
    static_cast<void>(to_host(1.0));
    double const in = shared_rate(rates_.host_to_device_both, rates_.host_to_device);
    double const out = shared_rate(rates_.device_to_host_both, rates_.device_to_host);
    Seconds const together{std::min(work_.to_device / in, work_.to_host / out)};
    times_.host_to_device =
        together + to_device(std::max(0.0, work_.to_device - in * together.count()));
    times_.device_to_host =
        together + to_host(std::max(0.0, work_.to_host - out * together.count()));
  }

  /// Sets the time of host memory. The CPU reads the state and writes it back, reads the gradient,
  /// and writes the parameter past its caches. Bytes that cross the link are read or written once
  /// more.
  void set_host_memory() {
    if (rates_.host_memory <= 0.0) {
      return;
    }
    double const touched = 2.0 * demand_.state_bytes + static_cast<double>(demand_.gradient_bytes) +
                           static_cast<double>(demand_.parameter_bytes);
    times_.host_memory =
        Seconds{(work_.cpu * touched + work_.to_device + work_.to_host) / rates_.host_memory};
  }

  void set_storage() {
    double const gradients = work_.spilled * static_cast<double>(demand_.gradient_bytes);
    times_.storage = bandwidth_bound(demand_.storage.read + static_cast<Bytes>(gradients),
                                     demand_.storage.written, rates_.paths);
  }

  [[nodiscard]] ChunkTimes trip() const {
    // Held gradients are the first of each kind, so the last chunk's crosses if any does.
    bool const crosses = work_.gradients > 0.0;
    double const gradient = crosses ? static_cast<double>(demand_.gradient_bytes) : 0.0;
    if (work_.chunk > 0.0) {
      return {to_device(work_.chunk * (demand_.state_bytes + gradient)), kernel(work_.chunk),
              to_host(work_.chunk * demand_.state_bytes)};
    }
    return {to_device(work_.resident_chunk * gradient), kernel(work_.resident_chunk), {}};
  }

  /// Each resource's busy time with the times before its first chunk and after its last.
  [[nodiscard]] Seconds with_ends() const {
    ChunkTimes const one = trip();
    auto const copied = static_cast<double>(demand_.parameter_bytes) * work_.copied_chunk;
    return std::max(
        {times_.cpu + to_device(copied), times_.host_to_device + one.kernel + one.out,
         times_.device + one.in + one.out,
         times_.device_to_host + (work_.chunk > 0.0 ? one.in + one.kernel : Seconds{})});
  }

  /// The time of turns: resident subgroups first, gradient by gradient, then the CPU and its
  /// copies, one after the other.
  [[nodiscard]] Seconds in_turns() const {
    auto const gradient = static_cast<double>(demand_.gradient_bytes);
    Seconds const gradients = to_device(work_.resident_gradients * gradient);
    Seconds const updates = kernel(work_.resident);
    double const first = std::min(work_.resident_chunk, work_.resident_gradients);
    Seconds const residents =
        std::max(gradients + kernel(work_.resident_chunk), updates + to_device(first * gradient));
    double const copied = demand_.direct_copy ? 0.0 : static_cast<double>(demand_.parameter_bytes);
    return residents + times_.cpu + to_device(work_.cpu * copied);
  }

  UpdateDemand const& demand_;
  UpdateRates const& rates_;
  Work work_;
  UpdateTimes times_;
};

}  // namespace

UpdateTimes update_times(UpdateDemand const& demand, UpdateRates const& rates, double share) {
  return Makespan{demand, rates, share}.finished();
}

double best_share(UpdateDemand const& demand, UpdateRates const& rates) {
  // Times in the order of their weight.
  auto const times = [&](double share) {
    Makespan makespan{demand, rates, share};
    return std::pair{makespan.finished().total, makespan.without_storage()};
  };
  // Shares ascend, and only a better one replaces another, so that of equals the least share wins.
  int best = 0;
  auto least = times(0.0);
  for (int i = 1; i <= grid; ++i) {
    auto const here = times(static_cast<double>(i) / grid);
    if (here < least) {
      best = i;
      least = here;
    }
  }
  double low = static_cast<double>(std::max(0, best - 1)) / grid;
  double high = static_cast<double>(std::min(grid, best + 1)) / grid;
  for (int i = 0; i < narrowings; ++i) {
    double const third = (high - low) / 3.0;
    if (times(low + third) <= times(high - third)) {
      high -= third;
    } else {
      low += third;
    }
  }
  return times(low) < least ? low : static_cast<double>(best) / grid;
}

double paper_stride(double cpu_update, double conversion, double device_update, double link) {
  require(cpu_update > 0.0 && device_update > 0.0 && link > 0.0,
          "paper_stride: the rates are positive");
  double const converting = conversion > 0.0 ? 1.0 / conversion : 0.0;
  double const per_cpu_update = 1.0 / cpu_update + converting - 1.0 / (2.0 * link);
  if (per_cpu_update <= 0.0) {
    return std::numeric_limits<double>::infinity();
  }
  return (3.0 / link + 1.0 / device_update) / per_cpu_update;
}

}  // namespace offstage::plan
