#include "update/gradients/held_gradients.hpp"

#include <algorithm>
#include <utility>

#include "base/chunk.hpp"
#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/watch.hpp"
#include "kernels/optimizer/gradient.hpp"
#include "plan/places_in_turn.hpp"
#include "update/gradients/order.hpp"

namespace offstage::update {
namespace {

std::int64_t elements_of(std::vector<state::Subgroup> const& subgroups) {
  return subgroups.empty() ? 0 : subgroups.back().begin + subgroups.back().size;
}

}  // namespace

HeldGradients::HeldGradients(device::Device& device, Bytes room, Bytes element_bytes,
                             std::vector<state::Subgroup> const& subgroups,
                             device::MemoryCounter* memory, int planes, SumsInTurn in_turn)
    : subgroups_{subgroups},
      element_bytes_{element_bytes},
      planes_{planes},
      memory_{device.allocate(room,
                              "gradients that wait there for the update "
                              "(update.device-gradients)")},
      norms_{device.allocate(norm_bytes(elements_of(subgroups)), "norms of gradients")},
      host_norms_{norm_bytes(elements_of(subgroups))},
      pinned_{host_norms_.size() > 0 ? device.pin(host_norms_.bytes()) : nullptr},
      bring_{device.make_stream("gradients to device")},
      take_{device.make_stream("sums to host")},
      in_turn_{std::move(in_turn)},
      told_{memory} {}

std::vector<std::int64_t> HeldGradients::blocks_of(state::ShardMap const& map, int rank) {
  std::vector<std::int64_t> begins;
  for (int layer = 0; layer < static_cast<int>(map.layers().size()); ++layer) {
    if (GradientOrder::first_of_block(map.layers(), layer) == layer) {
      begins.push_back(map.shard_offset(layer, rank));
    }
  }
  return begins;
}

Bytes HeldGradients::norm_bytes(std::int64_t shard_elements) {
  return shard_elements / chunk_elements * static_cast<Bytes>(sizeof(double));
}

void HeldGradients::hold(std::span<std::int64_t const> staying,
                         std::span<std::int64_t const> leaving) {
  tell();
  places_.clear();
  staying_ = 0;
  auto const without_place = [this](std::span<std::int64_t const> indices) {
    std::vector<Range> ranges;
    for (std::int64_t const index : indices) {
      state::Subgroup const& subgroup = subgroups_.at(static_cast<std::size_t>(index));
      if (!holds(subgroup.begin)) {
        ranges.push_back({subgroup.begin, subgroup.size});
      }
    }
    return ranges;
  };
  find_places(without_place(staying), true);
  auto const others = without_place(leaving);
  in_turn_.blocks.empty() ? find_places(others, false) : find_places_in_turn(others);
}

void HeldGradients::find_places(std::span<Range const> subgroups, bool stay) {
  Bytes taken = stay ? 0 : staying_;
  Bytes const room = memory_.size() - in_turn_.reserved * planes_ * element_bytes_;
  for (Range const& subgroup : subgroups) {
    // Subgroups are of whole chunks: aligned as kernels like it.
    Bytes const bytes = subgroup.count * element_bytes_ * planes_;
    if (bytes <= room - taken) {
      places_.push_back({.elements = subgroup, .offset = taken, .stays = stay});
      taken += bytes;
    }
  }
  staying_ = stay ? taken : staying_;
  std::ranges::sort(places_, {}, [](Place const& place) { return place.elements.begin; });
}

void HeldGradients::find_places_in_turn(std::span<Range const> subgroups) {
  std::vector<Range> ascending{subgroups.begin(), subgroups.end()};
  std::ranges::sort(ascending, {}, &Range::begin);
  Bytes const element = planes_ * element_bytes_;
  for (auto const& place :
       plan::places_in_turn(ascending, in_turn_.blocks, (memory_.size() - staying_) / element)) {
    places_.push_back({.elements = place.elements,
                       .offset = staying_ + place.begin * element,
                       .stays = false,
                       .after = place.after});
  }
  std::ranges::sort(places_, {}, [](Place const& place) { return place.elements.begin; });
  std::scoped_lock const lock{mutex_};
  left_ = elements_of(subgroups_);
}

void HeldGradients::wait_for(Place const& place) {
  if (place.after < 0) {
    return;
  }
  Waiting const waiting{"sums to leave the device before those of element", place.elements.begin};
  std::unique_lock lock{mutex_};
  changed_.wait(lock, [&] { return left_ <= place.after || given_up_; });
}

void HeldGradients::give_up() noexcept {
  std::scoped_lock const lock{mutex_};
  given_up_ = true;
  changed_.notify_all();
}

bool HeldGradients::holds(std::int64_t element) const {
  return plan::find_place(places_, element) != nullptr;
}

HeldGradients::Place& HeldGradients::place_of(std::int64_t subgroup) {
  auto* const place =
      plan::find_place(places_, subgroups_.at(static_cast<std::size_t>(subgroup)).begin);
  require(place != nullptr, "HeldGradients: the gradient is not held");
  return *place;
}

bool HeldGradients::stays(std::int64_t subgroup) const {
  auto const* const place =
      plan::find_place(places_, subgroups_.at(static_cast<std::size_t>(subgroup)).begin);
  return place != nullptr && place->stays;
}

std::span<std::byte> HeldGradients::gradient(std::int64_t subgroup) const {
  require(stays(subgroup), "HeldGradients: the subgroup's gradient does not stay");
  return totals(*plan::find_place(places_, subgroups_[static_cast<std::size_t>(subgroup)].begin));
}

std::span<std::byte> HeldGradients::totals(Place const& place) const {
  return memory_.as<std::byte>().subspan(
      static_cast<std::size_t>(place.offset),
      static_cast<std::size_t>(place.elements.count * element_bytes_));
}

template <class A>
SumPlaces<A> HeldGradients::sums(Place const& place) const {
  auto const here = totals(place);
  auto const size = here.size() / sizeof(A);
  auto* const first = reinterpret_cast<A*>(here.data());
  return {{first, size}, {first + size, static_cast<std::size_t>(planes_ - 1) * size}};
}

template <class A, class T>
std::vector<Range> HeldGradients::add(device::Stream& stream, std::int64_t begin,
                                      std::span<T const> gradient, Addition const& how) {
  require(element_bytes_ == static_cast<Bytes>(sizeof(A)),
          "HeldGradients: sums of another type than the room was made for");
  std::vector<Range> others;
  std::int64_t const end = begin + std::ssize(gradient);
  auto const first_inside = std::ranges::upper_bound(
      subgroups_, begin, {}, [](state::Subgroup const& each) { return each.begin + each.size; });
  for (auto each = first_inside; each != subgroups_.end() && each->begin < end; ++each) {
    std::int64_t const from = std::max(begin, each->begin);
    std::int64_t const count = std::min(end, each->begin + each->size) - from;
    auto* const place = plan::find_place(places_, from);
    if (place == nullptr) {
      others.push_back({from - begin, count});
      continue;
    }
    wait_for(*place);
    place->use.note_written();
    auto const places = sums<A>(*place).part(static_cast<std::size_t>(from - place->elements.begin),
                                             static_cast<std::size_t>(count));
    auto const part =
        gradient.subspan(static_cast<std::size_t>(from - begin), static_cast<std::size_t>(count));
    add_to<A, T>(places, part, how, [&](auto const& call) { kernels::accumulate(stream, call); });
    if (how.final) {
      kernels::chunk_norms<A>(stream, {places.total, norms_of(norms_.as<double>(), from, count)});
    }
  }
  return others;
}

void HeldGradients::bring(std::int64_t subgroup, std::span<std::byte const> sum) {
  place_of(subgroup).use.note_written();
  auto const place = gradient(subgroup);
  require(place.size() == sum.size(), "HeldGradients: a sum of another size");
  bring_->copy(place.data(), sum.data(), std::ssize(sum), device::Copy::host_to_device);
  bring_->synchronize();
}

void HeldGradients::take(std::int64_t subgroup, Range range, std::span<std::byte> to,
                         std::span<double> norms) {
  std::int64_t const begin = subgroups_.at(static_cast<std::size_t>(subgroup)).begin + range.begin;
  auto* const place = plan::find_place(places_, begin);
  require(place != nullptr, "HeldGradients: the gradient is not held");
  auto const from = totals(*place).subspan(
      static_cast<std::size_t>((begin - place->elements.begin) * element_bytes_),
      static_cast<std::size_t>(range.count * element_bytes_));
  require(to.size() == from.size() && std::ssize(norms) == range.count / chunk_elements,
          "HeldGradients: room for sums of another size");
  take_->copy(to.data(), from.data(), std::ssize(to), device::Copy::device_to_host);
  auto const squares = fetch_norms(*take_, begin, range.count);
  take_->synchronize();
  std::ranges::copy(squares, norms.begin());
  place->use.read = device::MemoryCounter::Clock::now();
  std::scoped_lock const lock{mutex_};
  left_ = begin;  // they are taken from the last one down
  changed_.notify_all();
}

void HeldGradients::collect_norms(device::Stream& stream, std::span<double> chunk_norms) const {
  for (state::Subgroup const& each : subgroups_) {
    if (stays(each.index)) {
      fetch_norms(stream, each.begin, each.size);
    }
  }
  stream.synchronize();
  for (state::Subgroup const& each : subgroups_) {
    if (stays(each.index)) {
      std::ranges::copy(norms_of(host_norms_.as<double>(), each.begin, each.size),
                        norms_of(chunk_norms, each.begin, each.size).begin());
    }
  }
}

std::span<double> HeldGradients::fetch_norms(device::Stream& stream, std::int64_t begin,
                                             std::int64_t count) const {
  auto const from = norms_of(norms_.as<double>(), begin, count);
  auto const to = norms_of(host_norms_.as<double>(), begin, count);
  stream.copy(to.data(), from.data(), static_cast<Bytes>(to.size_bytes()),
              device::Copy::device_to_host);
  return to;
}

HeldGradients::Reading HeldGradients::read(std::int64_t subgroup) {
  return Reading{&place_of(subgroup).use};
}

void HeldGradients::tell() noexcept {
  auto const now = device::MemoryCounter::Clock::now();
  for (Place const& place : places_) {
    if (told_ != nullptr && place.use.was_written()) {
      told_->used(device::MemoryCounter::User::held_gradients,
                  place.elements.count * element_bytes_ * planes_, place.use.written,
                  place.use.read > place.use.written ? place.use.read : now);
    }
  }
}

std::span<double> HeldGradients::norms_of(std::span<double> norms, std::int64_t begin,
                                          std::int64_t count) {
  return norms.subspan(static_cast<std::size_t>(begin / chunk_elements),
                       static_cast<std::size_t>(count / chunk_elements));
}

#define OFFSTAGE_INSTANTIATE_ADD(A, T)                                                \
  template std::vector<Range> HeldGradients::add<A, T>(device::Stream&, std::int64_t, \
                                                       std::span<T const>, Addition const&);
OFFSTAGE_INSTANTIATE_ADD(float, float)
OFFSTAGE_INSTANTIATE_ADD(float, bfloat16)
OFFSTAGE_INSTANTIATE_ADD(float, float16)
OFFSTAGE_INSTANTIATE_ADD(bfloat16, bfloat16)
OFFSTAGE_INSTANTIATE_ADD(float16, float16)
#undef OFFSTAGE_INSTANTIATE_ADD

}  // namespace offstage::update
