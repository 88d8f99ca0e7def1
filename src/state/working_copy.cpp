#include "state/working_copy.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "base/watch.hpp"

namespace offstage::state {
namespace {

template <class T>
Bytes bytes_of(std::int64_t elements) {
  return elements * static_cast<Bytes>(sizeof(T));
}

/// Elements of all gathered layers together.
std::int64_t gathered_elements(ShardMap const& map) {
  std::int64_t elements = 0;
  for (int layer = 0; layer < static_cast<int>(map.layers().size()); ++layer) {
    elements += map.gathered_elements(layer);
  }
  return elements;
}

/// Layers that are held at a time.
constexpr int most_held = 2;

}  // namespace

template <class T>
Bytes WorkingCopy<T>::host_bytes(ShardMap const& map, Route route) {
  return route == Route::staged && map.ranks() > 1 ? bytes_of<T>(map.largest_gathered()) : 0;
}

template <class T>
Bytes WorkingCopy<T>::device_bytes(ShardMap const& map, int rank, int slots) {
  std::int64_t elements = map.shard_elements(rank);
  if (map.ranks() > 1) {
    elements +=
        slots == all_layers ? gathered_elements(map) : map.layer_slot_sizes().elements(slots);
  }
  return bytes_of<T>(elements);
}

template <class T>
WorkingCopy<T>::WorkingCopy(ShardMap const& map, RankLink& link, device::Device& device,
                            device::Stream& stream, int slots)
    : map_{map},
      link_{link},
      stream_{stream},
      shard_{device.allocate(bytes_of<T>(map.shard_elements(link.rank())),
                             "the working copy of the parameters")},
      staging_{host_bytes(map, link.route())},
      sizes_{map.layer_slot_sizes()},
      keeps_{slots == all_layers && map.ranks() > 1},
      slots_(keeps_ ? map.layers().size()
                    : static_cast<std::size_t>(std::max(slots, least_slots)) + 1) {
  require(slots >= least_slots || slots == all_layers,
          "WorkingCopy: two layers may be held at a time");
  if (staging_.size() > 0) {
    pinned_ = device.pin(staging_.bytes());
  }
  if (map.ranks() > 1) {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      std::int64_t const shared = i + 1 < slots_.size() ? sizes_.usual : sizes_.large;
      slots_[i].buffer = device.allocate(
          bytes_of<T>(keeps_ ? map.gathered_elements(static_cast<int>(i)) : shared),
          keeps_ ? "a gathered layer, which stays (parameters.sharding=zero2 or zero1)"
                 : "a gathered layer");
    }
    if (link.route() != Route::in_place) {
      gathering_ = device.make_stream("parameters from ranks");
    }
  }
}

template <class T>
void WorkingCopy<T>::begin() {
  for (Slot& slot : slots_) {
    require(slot.layer < 0, "WorkingCopy: a layer is held");
    slot.filled = false;
  }
}

template <class T>
bool WorkingCopy<T>::gathers(int layer) const {
  return link_.size() > 1 && !(keeps_ && slots_[static_cast<std::size_t>(layer)].filled);
}

template <class T>
std::span<T const> WorkingCopy<T>::acquire(int layer) {
  Waiting const waiting{"layer", layer};
  Slot& slot = next_slot(layer);
  if (slot.filled) {
    slot.layer = layer;
    auto const elements = map_.layers()[static_cast<std::size_t>(layer)].padded_elements();
    return slot.buffer.template as<T>().first(static_cast<std::size_t>(elements));
  }
  std::int64_t const begin = map_.shard_offset(layer, link_.rank());
  std::int64_t const size = map_.chunks(layer, link_.rank()).count * chunk_elements;
  if (readiness_ != nullptr) {
    readiness_->wait(begin, begin + size);
  }
  std::span<T const> const mine =
      shard().subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
  std::span<T const> const whole = link_.size() == 1 ? mine : gather(layer, mine, slot);
  slot.layer = layer;
  slot.filled = keeps_;
  return whole;
}

template <class T>
auto WorkingCopy<T>::next_slot(int layer) -> Slot& {
  auto const held = [](Slot const& slot) { return slot.layer >= 0; };
  require(std::ranges::count_if(slots_, held) < most_held,
          "WorkingCopy: two layers are held already");
  if (keeps_) {
    Slot& own = slots_[static_cast<std::size_t>(layer)];
    require(!held(own), "WorkingCopy: the layer is held already");
    return own;
  }
  auto const all = std::span{slots_};
  bool const large = sizes_.is_large(map_.gathered_elements(layer));
  auto const slots = large ? all.last(1) : all.first(all.size() - 1);
  auto const next = std::ranges::min_element(slots, {}, [&](Slot const& slot) {
    return std::pair{held(slot), slot.released};
  });
  require(!held(*next), "WorkingCopy: two large layers cannot be held at a time");
  return *next;
}

template <class T>
std::span<T const> WorkingCopy<T>::gather(int layer, std::span<T const> mine, Slot& slot) {
  auto const elements =
      static_cast<std::size_t>(map_.layers()[static_cast<std::size_t>(layer)].padded_elements());
  auto const with_padding = static_cast<std::size_t>(map_.gathered_elements(layer));
  auto const own =
      static_cast<std::size_t>(map_.chunks(layer, link_.rank()).first * chunk_elements);
  auto const whole = slot.buffer.template as<T>().first(elements);
  bool const staged = staging_.size() > 0;
  auto const gathered =
      (staged ? staging_.as<T>() : slot.buffer.template as<T>()).first(with_padding);
  device::Stream& stream = gathering_ ? *gathering_ : stream_;
  auto const copy = [&](std::span<T> target, std::span<T const> source, device::Copy direction) {
    if (!source.empty()) {
      stream.copy(target.data(), source.data(), static_cast<Bytes>(source.size_bytes()), direction);
    }
  };
  auto const wait_for_slot = [&] {
    if (slot.freed) {
      queue_behind(stream, *slot.freed);
      slot.freed = nullptr;
    }
  };
  if (!staged) {
    wait_for_slot();
  }
  copy(gathered.subspan(own, mine.size()), mine,
       staged ? device::Copy::device_to_host : device::Copy::device_to_device);
  link_.all_gather(stream, std::as_writable_bytes(gathered));
  if (staged) {
    wait_for_slot();  // only now, because the exchange between ranks need not wait
    copy(whole.first(own), gathered.first(own), device::Copy::host_to_device);
    copy(whole.subspan(own, mine.size()), mine, device::Copy::device_to_device);
    std::size_t const rest = own + mine.size();
    copy(whole.subspan(rest), gathered.first(elements).subspan(rest), device::Copy::host_to_device);
  }
  if (gathering_) {
    stream_.wait(*gathering_->record());
  }
  return whole;
}

template <class T>
void WorkingCopy<T>::release(int layer, std::shared_ptr<device::Event> done) {
  auto const slot =
      std::ranges::find_if(slots_, [layer](Slot const& s) { return s.layer == layer; });
  require(slot != slots_.end(), "WorkingCopy: release of a layer that is not held");
  slot->layer = -1;
  slot->freed = std::move(done);
  slot->released = ++releases_;
}

template <class T>
void WorkingCopy<T>::write(std::int64_t begin, std::span<T const> values) {
  auto const all = static_cast<std::int64_t>(shard().size());
  require(begin >= 0 && begin <= all && std::ssize(values) <= all - begin,
          "WorkingCopy: a write beyond the shard");
  if (!values.empty()) {
    stream_.copy(shard().data() + begin, values.data(), static_cast<Bytes>(values.size_bytes()),
                 device::Copy::host_to_device);
    stream_.synchronize();
  }
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_RUN_TYPES, WorkingCopy)

}  // namespace offstage::state
