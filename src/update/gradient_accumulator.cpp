#include "update/gradient_accumulator.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "base/watch.hpp"
#include "kernels/optimizer/gradient.hpp"

namespace offstage::update {
namespace {

std::int64_t largest_part(state::ShardMap const& map, int rank) {
  std::int64_t largest = 0;
  for (int layer = 0; layer < static_cast<int>(map.layers().size()); ++layer) {
    largest = std::max(largest, map.chunks(layer, rank).count * chunk_elements);
  }
  return largest;
}

template <class T>
Bytes layer_bytes(state::ShardMap const& map) {
  return map.largest_layer() * static_cast<Bytes>(sizeof(T));
}

template <class T>
Bytes receive_bytes(state::ShardMap const& map, int rank) {
  if (map.ranks() == 1) {
    return 0;
  }
  return map.ranks() * largest_part(map, rank) * static_cast<Bytes>(sizeof(T));
}

}  // namespace

template <class T>
Bytes GradientAccumulator<T>::exchange_bytes(state::ShardMap const& map, int rank,
                                             state::Route route) {
  Bytes const sent = route == state::Route::staged ? layer_bytes<T>(map) : 0;
  return sent + receive_bytes<T>(map, rank);
}

template <class T>
Bytes GradientAccumulator<T>::device_bytes(state::ShardMap const& map, int rank,
                                           state::Route route) {
  switch (route) {
    case state::Route::in_place:
      return 0;
    case state::Route::staged:
      return layer_bytes<T>(map);
    case state::Route::direct:
      break;
  }
  return layer_bytes<T>(map) + receive_bytes<T>(map, rank);
}

template <class T>
GradientAccumulator<T>::GradientAccumulator(state::ShardMap const& map, state::RankLink& link,
                                            device::Device& device, device::Stream& stream,
                                            std::vector<state::Subgroup> const& subgroups,
                                            GradientSettings settings)
    : map_{map},
      link_{link},
      stream_{stream},
      subgroups_{subgroups},
      settings_{std::move(settings)},
      chunk_norms_(static_cast<std::size_t>(map.shard_elements(link.rank()) / chunk_elements)),
      flusher_{std::make_unique<GradientFlusher>(settings_.flushed.get(), settings_.on_final)},
      pacer_{settings_.host_sum_rate},
      receive_{link.route() == state::Route::direct ? 0 : receive_bytes<T>(map, link.rank())} {
  require(settings_.accumulated != nullptr, "GradientAccumulator: sums need a tier");
  require((link.route() == state::Route::in_place) == device.host_visible(),
          "GradientAccumulator: gradients are used in place where host code sees the device");
  require(link.size() > 1 || link.route() != state::Route::direct,
          "GradientAccumulator: one rank passes nothing on");
  if (link.route() == state::Route::staged) {
    transfer_ = std::make_unique<GradientTransfer>(device, stream, layer_bytes<T>(map),
                                                   settings_.trace, settings_.memory);
  } else if (link.route() == state::Route::direct) {
    slices_ = std::make_unique<SliceTransfer>(device, stream, link, layer_bytes<T>(map),
                                              receive_bytes<T>(map, link.rank()), settings_.trace,
                                              settings_.memory);
  }
}

template <class T>
void GradientAccumulator<T>::set_held(HeldGradients* held) {
  require(held == nullptr || ((transfer_ || slices_) && !settings_.flushed),
          "GradientAccumulator: a device that the host does not see can hold what is not flushed");
  held_ = held;
}

template <class T>
void GradientAccumulator<T>::begin_round(int active, bool last) {
  require(active >= 1 && active <= link_.size(),
          "GradientAccumulator: a round has an active rank, and no more than there are");
  require(layers_left_ == 0 && !open_, "GradientAccumulator: end_round comes first");
  active_ = active;
  last_ = last;
  layers_left_ = static_cast<int>(map_.layers().size());
  subgroups_left_ = subgroups_.size();
  settings_.accumulated->begin_pass();
  if (last && settings_.flushed) {
    settings_.flushed->begin_pass();
  }
}

template <class T>
void GradientAccumulator<T>::end_round() {
  require(layers_left_ == 0, "GradientAccumulator: every layer comes in every round");
  flusher_->drain();
  if (last_ && sums_on_device()) {
    held_->collect_norms(stream_, chunk_norms_);
  }
  fresh_ = false;
}

template <class T>
void GradientAccumulator<T>::add(int layer, std::span<T const> gradient) {
  Waiting const waiting{"the gradient of layer", layer};
  require(layer == layers_left_ - 1,
          "GradientAccumulator: after begin_round every layer comes once, the last first");
  require(gradient.empty() == (link_.rank() >= active_),
          "GradientAccumulator: an active rank brings a gradient, an idle one none");
  flusher_->rethrow();
  if (slices_) {
    add_coming();
    begin_slices(layer, gradient);
    coming_ = layer;
  } else if (transfer_) {
    add_coming();
    if (!gradient.empty()) {
      // Of one rank the layer is its slice; of several nothing is added before it has left.
      transfer_->begin(layer, std::as_bytes(gradient), add_held(stream_, layer, gradient, 1));
    }
    coming_ = layer;
  } else {
    stream_.synchronize();
    sum(layer, gradient);
  }
  if (--layers_left_ == 0) {
    add_coming();
  }
}

template <class T>
std::vector<Range> GradientAccumulator<T>::add_held(device::Stream& stream, int layer,
                                                    std::span<T const> slices, int ranks) {
  if (!sums_on_device() || slices.empty()) {
    return {{0, static_cast<Bytes>(slices.size_bytes())}};
  }
  std::int64_t const begin = map_.shard_offset(layer, link_.rank());
  auto const length = slices.size() / static_cast<std::size_t>(ranks);
  constexpr auto element = static_cast<Bytes>(sizeof(T));
  std::vector<Range> leaving;
  for (int source = 0; source < ranks; ++source) {
    auto const offset = static_cast<std::size_t>(source) * length;
    auto const slice = slices.subspan(offset, length);
    bool const first = fresh_ && source == 0;
    bool const last = last_ && source == ranks - 1;
    auto const parts = settings_.accumulate_fp32
                           ? held_->add<float, T>(stream, begin, slice, first, last)
                           : held_->add<T, T>(stream, begin, slice, first, last);
    for (Range const& part : parts) {
      Bytes const from = (static_cast<Bytes>(offset) + part.begin) * element;
      if (!leaving.empty() && leaving.back().begin + leaving.back().count == from) {
        leaving.back().count += part.count * element;
      } else {
        leaving.push_back({from, part.count * element});
      }
    }
  }
  return leaving;
}

template <class T>
void GradientAccumulator<T>::add_coming() {
  if (!coming_) {
    return;
  }
  int const layer = *std::exchange(coming_, std::nullopt);
  auto const elements = [](std::span<std::byte const> bytes) {
    return std::span{reinterpret_cast<T const*>(bytes.data()), bytes.size() / sizeof(T)};
  };
  if (slices_) {
    auto const leaving = add_held(slices_->stream(), layer, elements(slices_->exchange()), active_);
    add_all(layer, elements(slices_->finish(leaving)));
  } else {
    sum(layer, link_.rank() < active_ ? elements(transfer_->finish()) : std::span<T const>{});
  }
}

template <class T>
void GradientAccumulator<T>::begin_slices(int layer, std::span<T const> gradient) {
  slices_->begin(layer, std::as_bytes(gradient), send_parts(layer, !gradient.empty()),
                 receive_parts(layer));
}

template <class T>
void GradientAccumulator<T>::sum(int layer, std::span<T const> gradient) {
  add_all(layer, link_.size() == 1 ? gradient : exchange(layer, gradient));
}

template <class T>
void GradientAccumulator<T>::add_all(int layer, std::span<T const> slices) {
  if (settings_.accumulate_fp32) {
    add_slices<float>(layer, slices);
  } else {
    add_slices<T>(layer, slices);
  }
}

template <class T>
std::vector<Slice> GradientAccumulator<T>::send_parts(int layer, bool any) const {
  return any ? map_.slices(layer, sizeof(T))
             : std::vector<Slice>(static_cast<std::size_t>(link_.size()));
}

template <class T>
std::vector<Slice> GradientAccumulator<T>::receive_parts(int layer) const {
  std::vector<Slice> parts(static_cast<std::size_t>(link_.size()));
  Bytes const part_bytes =
      map_.chunks(layer, link_.rank()).count * chunk_elements * static_cast<Bytes>(sizeof(T));
  for (std::size_t source = 0; source < static_cast<std::size_t>(active_); ++source) {
    parts[source] = {static_cast<Bytes>(source) * part_bytes, part_bytes};
  }
  return parts;
}

template <class T>
std::span<T const> GradientAccumulator<T>::exchange(int layer, std::span<T const> gradient) {
  auto const parts = receive_parts(layer);
  link_.all_to_all(stream_, std::as_bytes(gradient), send_parts(layer, !gradient.empty()),
                   receive_.bytes(), parts);
  auto const& last = parts[static_cast<std::size_t>(active_ - 1)];
  return receive_.template as<T>().first(static_cast<std::size_t>(last.offset + last.size) /
                                         sizeof(T));
}

template <class T>
template <class A>
void GradientAccumulator<T>::add_slices(int layer, std::span<T const> slices) {
  std::int64_t const part = std::ssize(slices) / active_;
  std::int64_t const offset = map_.shard_offset(layer, link_.rank());
  // A subgroup may hold several layers, and a layer lie in several subgroups: from the end down, as
  // the layers come.
  for (std::int64_t end = offset + part; end > offset;) {
    state::Subgroup const& subgroup = subgroups_[subgroups_left_ - 1];
    std::int64_t const begin = std::max(offset, subgroup.begin);
    auto const count = static_cast<std::size_t>(end - begin);
    if (sums_on_device() && is_held(subgroup.index)) {
      if (begin == subgroup.begin) {
        close_held();
      }
      end = begin;
      continue;
    }
    std::span<A> const sums =
        open_sums<A>().subspan(static_cast<std::size_t>(begin - subgroup.begin), count);
    Bytes moved = 0;
    for (std::int64_t source = 0; source < active_; ++source) {
      moved += static_cast<Bytes>(sizeof(T) + (fresh_ && source == 0 ? 1 : 2) * sizeof(A));
    }
    moved += last_ ? static_cast<Bytes>(sizeof(A)) : 0;
    pacer_.run(static_cast<double>(moved) * static_cast<double>(count), [&] {
      for (std::int64_t source = 0; source < active_; ++source) {
        auto const from = static_cast<std::size_t>(source * part + begin - offset);
        kernels::host::accumulate<A, T>({sums, slices.subspan(from, count), fresh_ && source == 0});
      }
      if (last_) {
        kernels::host::chunk_norms<A>(
            {sums, std::span{chunk_norms_}.subspan(static_cast<std::size_t>(begin / chunk_elements),
                                                   count / chunk_elements)});
      }
    });
    if (begin == subgroup.begin) {
      close_sums();
    }
    end = begin;
  }
}

template <class T>
template <class A>
std::span<A> GradientAccumulator<T>::open_sums() {
  state::Subgroup const& subgroup = subgroups_[subgroups_left_ - 1];
  if (!open_) {
    tiers::Tiers& tiers = *settings_.accumulated;
    open_.emplace(fresh_ ? tiers.create(subgroup.index) : tiers.fetch(subgroup.index));
  }
  auto const bytes = open_->mutable_bytes();
  auto const size = static_cast<std::size_t>(subgroup.size);
  require(bytes.size() == size * sizeof(A), "GradientAccumulator: an extent of another size");
  return {reinterpret_cast<A*>(bytes.data()), size};
}

template <class T>
void GradientAccumulator<T>::close_sums() {
  state::Subgroup const& subgroup = subgroups_[--subgroups_left_];
  auto const norms =
      std::span{chunk_norms_}.subspan(static_cast<std::size_t>(subgroup.begin / chunk_elements),
                                      static_cast<std::size_t>(subgroup.size / chunk_elements));
  double const squares = std::accumulate(norms.begin(), norms.end(), 0.0);
  if (!last_) {
    flusher_->commit(std::move(*open_), std::nullopt);
  } else if (is_held(subgroup.index)) {
    flusher_->bring(std::move(*open_), *held_, squares);
  } else if (settings_.flushed) {
    GradientView const view = view_of(open_->bytes(), settings_.accumulate_fp32);
    flusher_->flush(std::move(*open_), view, squares);
  } else {
    flusher_->commit(std::move(*open_), squares);
  }
  open_.reset();
}

// The layer's way to the host began, or would have, when the device had added it.
template <class T>
void GradientAccumulator<T>::close_held() {
  state::Subgroup const& subgroup = subgroups_[--subgroups_left_];
  if (last_ && settings_.on_final) {
    settings_.on_final(subgroup.index, 0.0);
  }
}

template <class T>
double GradientAccumulator<T>::norm() const {
  require(last_ && layers_left_ == 0,
          "GradientAccumulator: the norm is known after the last round");
  // Layer by layer to rank 0, so that it sums in (layer, chunk) order within bounded memory.
  double sum = 0.0;
  std::vector<double> all;
  for (int layer = 0; layer < static_cast<int>(map_.layers().size()); ++layer) {
    auto const first =
        static_cast<std::size_t>(map_.shard_offset(layer, link_.rank()) / chunk_elements);
    auto const count = static_cast<std::size_t>(map_.chunks(layer, link_.rank()).count);
    auto parts = map_.slices(layer, 1);
    for (Slice& part : parts) {
      part.offset = part.offset / chunk_elements * static_cast<Bytes>(sizeof(double));
      part.size = part.size / chunk_elements * static_cast<Bytes>(sizeof(double));
    }
    all.resize(static_cast<std::size_t>(map_.layers()[static_cast<std::size_t>(layer)].chunks()));
    link_.comm().gather(std::as_bytes(std::span{chunk_norms_}.subspan(first, count)),
                        std::as_writable_bytes(std::span{all}), parts, 0);
    if (link_.rank() == 0) {
      for (double const chunk_sum : all) {
        sum += chunk_sum;
      }
    }
  }
  return std::sqrt(link_.comm().broadcast_value(sum, 0));
}

template <class T>
void GradientAccumulator<T>::begin_update() {
  (settings_.flushed ? settings_.flushed : settings_.accumulated)->begin_pass();
}

template <class T>
GradientLease GradientAccumulator<T>::fetch(state::Subgroup const& subgroup) {
  bool const flushed = settings_.flushed != nullptr;
  if (is_held(subgroup.index)) {
    return {{},
            view_of(held_->gradient(subgroup.index), settings_.accumulate_fp32),
            GradientPlace::device,
            held_->read(subgroup.index)};
  }
  tiers::Lease lease = (flushed ? settings_.flushed : settings_.accumulated)->fetch(subgroup.index);
  GradientView const view = view_of(lease.bytes(), flushed || settings_.accumulate_fp32);
  return {std::move(lease), view};
}

template <class T>
GradientView GradientAccumulator<T>::view_of(std::span<std::byte const> bytes, bool as_fp32) {
  if (as_fp32) {
    return std::span{reinterpret_cast<float const*>(bytes.data()), bytes.size() / sizeof(float)};
  }
  return std::span{reinterpret_cast<T const*>(bytes.data()), bytes.size() / sizeof(T)};
}

template <class T>
std::vector<tiers::Traffic> GradientAccumulator<T>::traffic() const {
  std::vector<tiers::Traffic> traffic{settings_.accumulated->traffic()};
  if (settings_.flushed) {
    traffic.push_back(settings_.flushed->traffic());
  }
  return traffic;
}

template class GradientAccumulator<float>;
template class GradientAccumulator<bfloat16>;
template class GradientAccumulator<float16>;

}  // namespace offstage::update
