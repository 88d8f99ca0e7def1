#include "plan/trip_order.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace offstage::plan {

// Each side should have two trips if the workers allow it: one drains or commits while the next is
// fed or computed.
TripOrder::TripOrder(std::span<Trip const> order, int workers, bool device_first,
                     std::int64_t reach)
    : least_{workers >= 4 ? 2 : 1}, device_first_{device_first}, reach_{reach} {
  for (std::size_t place = 0; place < order.size(); ++place) {
    (order[place].on_device ? device_ : cpu_)
        .turns.push_back({order[place], static_cast<std::int64_t>(place)});
  }
  cpu_trips_ = std::ssize(cpu_.turns);
}

bool TripOrder::must_wait() const {
  return device_first_ && device_.turns.empty() && !cpu_.turns.empty() && !device_done();
}

std::optional<Trip> TripOrder::take() {
  require(!must_wait(), "TripOrder: trips of the device end first");
  if (empty()) {
    return std::nullopt;
  }
  if (cpu_.turns.empty() || (device_first_ && !device_.turns.empty())) {
    return pop(device_);
  }
  return pop(device_.turns.empty() ? cpu_ : choose());
}

TripOrder::Side& TripOrder::choose() {
  bool const cpu_lacks = cpu_.under_way < least_;
  bool const device_lacks = device_.under_way < least_;
  auto const place = [](Side const& side) { return side.turns.front().place; };
  Side& first = place(cpu_) < place(device_) ? cpu_ : device_;
  if (cpu_lacks == device_lacks) {
    return first;
  }
  Side& lacking = cpu_lacks ? cpu_ : device_;
  bool const is_near = place(lacking) - brought_forward_ <= reach_;
  return is_near ? lacking : first;
}

Trip TripOrder::pop(Side& side) {
  Trip const trip = side.turns.front().trip;
  side.turns.pop_front();
  ++side.under_way;
  return trip;
}

void TripOrder::bring_forward(std::int64_t subgroup) {
  ++brought_forward_;
  for (Side* const side : {&cpu_, &device_}) {
    auto const turn = std::ranges::find(side->turns, subgroup,
                                        [](Turn const& each) { return each.trip.subgroup; });
    if (turn != side->turns.end()) {
      Trip const trip = turn->trip;
      side->turns.erase(turn);
      side->turns.push_front({trip, --first_place_});
    }
  }
}

void TripOrder::lowest_first() {
  reach_ = any_reach;
  for (Side* const side : {&cpu_, &device_}) {
    for (Turn& turn : side->turns) {
      turn.place = turn.trip.subgroup;
    }
    std::ranges::sort(side->turns, {}, &Turn::place);
  }
}

void TripOrder::end(Trip const& trip) noexcept {
  --(trip.on_device ? device_ : cpu_).under_way;
}

std::int64_t TripOrder::clear() noexcept {
  std::int64_t const left = std::ssize(cpu_.turns);
  cpu_.turns.clear();
  device_.turns.clear();
  return left;
}

std::vector<Trip> deal_trips(double share, std::span<std::int64_t const> order,
                             std::span<std::int64_t const> sizes) {
  std::vector<Trip> trips;
  trips.reserve(order.size());
  double owed = 0.0;  // elements that the device has not been given yet
  for (std::int64_t const index : order) {
    auto const size = static_cast<double>(sizes[static_cast<std::size_t>(index)]);
    owed += share * size;
    bool const on_device = share > 0.0 && owed >= size / 2;
    owed -= on_device ? size : 0.0;
    trips.push_back({.subgroup = index, .on_device = on_device});
  }
  return trips;
}

}  // namespace offstage::plan
