#include "update/gradients/held_gradients.hpp"

#include <algorithm>
#include <iterator>
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
                             device::MemoryCounter* memory, int planes,
                             std::vector<std::int64_t> blocks)
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
      places_(subgroups.size()),
      blocks_{std::move(blocks)},
      told_{memory},
      uses_(subgroups.size()) {
  if (!blocks_.empty() && !subgroups.empty()) {
    auto const largest = std::ranges::max(subgroups, {}, &state::Subgroup::size).size;
    turn_bytes_ =
        std::min(memory_.size(), plan::room_in_turn(blocks_, elements_of(subgroups), largest) *
                                     planes_ * element_bytes_);
  }
}

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
  std::ranges::fill(places_, Place{});
  taken_ = 0;
  find_places(staying, true);
  staying_ = taken_;
  if (blocks_.empty()) {
    find_places(leaving, false);
  } else {
    find_places_in_turn(leaving);
  }
}

void HeldGradients::find_places_in_turn(std::span<std::int64_t const> subgroups) {
  std::vector<std::int64_t> ascending;
  std::ranges::copy_if(subgroups, std::back_inserter(ascending),
                       [&](std::int64_t index) { return !holds(index); });
  std::ranges::sort(ascending);
  std::vector<Range> ranges;
  for (std::int64_t const index : ascending) {
    state::Subgroup const& subgroup = subgroups_.at(static_cast<std::size_t>(index));
    ranges.push_back({subgroup.begin, subgroup.size});
  }
  Bytes const element = planes_ * element_bytes_;
  auto const places = plan::places_in_turn(ranges, blocks_, (memory_.size() - staying_) / element);
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i].begin >= 0) {
      auto const after = places[i].after;
      places_[static_cast<std::size_t>(ascending[i])] = {
          .offset = staying_ + places[i].begin * element,
          .stays = false,
          .after = after < 0 ? after : ascending[static_cast<std::size_t>(after)]};
    }
  }
  std::scoped_lock const lock{mutex_};
  left_ = std::ssize(subgroups_);
}

void HeldGradients::wait_for_place(std::int64_t subgroup) {
  std::int64_t const after = places_[static_cast<std::size_t>(subgroup)].after;
  if (after < 0) {
    return;
  }
  Waiting const waiting{"sums to leave the device before those of subgroup", subgroup};
  std::unique_lock lock{mutex_};
  changed_.wait(lock, [&] { return left_ <= after || given_up_; });
}

void HeldGradients::give_up() noexcept {
  std::scoped_lock const lock{mutex_};
  given_up_ = true;
  changed_.notify_all();
}

void HeldGradients::find_places(std::span<std::int64_t const> subgroups, bool stay) {
  for (std::int64_t const index : subgroups) {
    state::Subgroup const& subgroup = subgroups_.at(static_cast<std::size_t>(index));
    Bytes const bytes = place_bytes(subgroup);  // of whole chunks: aligned as kernels like it
    if (!holds(index) && bytes <= memory_.size() - turn_bytes_ - taken_) {
      places_[static_cast<std::size_t>(index)] = {taken_, stay};
      taken_ += bytes;
    }
  }
}

bool HeldGradients::holds(std::int64_t subgroup) const {
  return places_.at(static_cast<std::size_t>(subgroup)).offset >= 0;
}

std::span<std::byte> HeldGradients::gradient(std::int64_t subgroup) const {
  require(holds(subgroup), "HeldGradients: the subgroup's gradient is not held");
  auto const index = static_cast<std::size_t>(subgroup);
  return memory_.as<std::byte>().subspan(
      static_cast<std::size_t>(places_[index].offset),
      static_cast<std::size_t>(subgroups_[index].size * element_bytes_));
}

template <class A>
SumPlaces<A> HeldGradients::sums(std::int64_t subgroup) const {
  auto const totals = gradient(subgroup);
  auto const size = totals.size() / sizeof(A);
  auto* const first = reinterpret_cast<A*>(totals.data());
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
    if (!holds(each->index)) {
      others.push_back({from - begin, count});
      continue;
    }
    wait_for_place(each->index);
    note_written(each->index);
    auto const places =
        sums<A>(each->index)
            .part(static_cast<std::size_t>(from - each->begin), static_cast<std::size_t>(count));
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
  note_written(subgroup);
  auto const place = gradient(subgroup);
  require(place.size() == sum.size(), "HeldGradients: a sum of another size");
  bring_->copy(place.data(), sum.data(), std::ssize(sum), device::Copy::host_to_device);
  bring_->synchronize();
}

void HeldGradients::take(std::int64_t subgroup, Range range, std::span<std::byte> to,
                         std::span<double> norms) {
  auto const from =
      gradient(subgroup).subspan(static_cast<std::size_t>(range.begin * element_bytes_),
                                 static_cast<std::size_t>(range.count * element_bytes_));
  require(to.size() == from.size() && std::ssize(norms) == range.count / chunk_elements,
          "HeldGradients: room for sums of another size");
  take_->copy(to.data(), from.data(), std::ssize(to), device::Copy::device_to_host);
  auto const squares = fetch_norms(
      *take_, subgroups_[static_cast<std::size_t>(subgroup)].begin + range.begin, range.count);
  take_->synchronize();
  std::ranges::copy(squares, norms.begin());
  uses_.at(static_cast<std::size_t>(subgroup)).read = device::MemoryCounter::Clock::now();
  if (range.begin == 0) {  // layers come in descending order: it was the last part
    std::scoped_lock const lock{mutex_};
    left_ = subgroup;
    changed_.notify_all();
  }
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
  return Reading{&uses_.at(static_cast<std::size_t>(subgroup))};
}

void HeldGradients::note_written(std::int64_t subgroup) {
  Use& use = uses_.at(static_cast<std::size_t>(subgroup));
  if (use.written == device::MemoryCounter::Clock::time_point{}) {
    use.written = device::MemoryCounter::Clock::now();
  }
}

void HeldGradients::tell() noexcept {
  auto const now = device::MemoryCounter::Clock::now();
  for (std::size_t i = 0; i < uses_.size(); ++i) {
    Use const use = std::exchange(uses_[i], {});
    bool const was_written = use.written != device::MemoryCounter::Clock::time_point{};
    if (told_ != nullptr && was_written) {
      told_->used(device::MemoryCounter::User::held_gradients, place_bytes(subgroups_[i]),
                  use.written, use.read > use.written ? use.read : now);
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
