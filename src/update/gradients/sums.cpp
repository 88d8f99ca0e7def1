#include "update/gradients/sums.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "kernels/optimizer/gradient.hpp"

namespace offstage::update {

template <class T>
GradientSums<T>::GradientSums(state::ShardMap const& map, int rank,
                              std::vector<state::Subgroup> const& subgroups,
                              GradientSettings settings)
    : map_{map},
      rank_{rank},
      subgroups_{subgroups},
      settings_{std::move(settings)},
      chunk_norms_(static_cast<std::size_t>(map.shard_elements(rank) / chunk_elements)),
      layer_sums_{settings_.layer_sums
                      ? block_bytes(map, rank,
                                    settings_.blocks.planes() *
                                        static_cast<Bytes>(settings_.accumulate_fp32 ? sizeof(float)
                                                                                     : sizeof(T)))
                      : 0},
      pacer_{settings_.host_sum_rate},
      flusher_{std::make_unique<GradientFlusher>(settings_.flushed.get())} {
  require(settings_.accumulated != nullptr, "GradientSums: sums need a tier");
}

template <class T>
void GradientSums<T>::set_held(HeldGradients* held, bool made_there) {
  held_ = held;
  made_there_ = made_there;
}

template <class T>
Bytes GradientSums<T>::block_bytes(state::ShardMap const& map, int rank, Bytes element) {
  if (element == 0) {
    return 0;
  }
  std::int64_t most = 0;
  std::int64_t chunks = 0;  // of the layer's block, up to the layer
  for (int layer = 0; layer < static_cast<int>(map.layers().size()); ++layer) {
    bool const begins = GradientOrder::first_of_block(map.layers(), layer) == layer;
    chunks = (begins ? 0 : chunks) + map.chunks(layer, rank).count;
    most = std::max(most, chunks);
  }
  return most * chunk_elements * element;
}

template <class T>
void GradientSums<T>::begin_pass(GradientPass const& pass) {
  require(!open_, "GradientSums: a pass ends before the next begins");
  require(pass.rounds() == 1 || settings_.layer_sums,
          "GradientSums: several rounds of a layer need memory between them");
  pass_ = pass;
  order_ = {map_.layers(), pass.rounds()};
  subgroups_left_ = subgroups_.size();
  settings_.accumulated->begin_pass();
  if (pass.last && settings_.flushed) {
    settings_.flushed->begin_pass();
  }
}

template <class T>
void GradientSums<T>::end_pass() {
  flusher_->drain();
}

template <class T>
void GradientSums<T>::add(int layer, std::span<T const> slices) {
  require(layer == order_.layer(), "GradientSums: another layer comes next");
  GradientRound const round = pass_.round(order_.round());
  if (settings_.accumulate_fp32) {
    add_slices<float>(layer, slices, round);
  } else {
    add_slices<T>(layer, slices, round);
  }
  order_.next();
}

template <class T>
template <class A>
void GradientSums<T>::add_slices(int layer, std::span<T const> slices, GradientRound const& round) {
  std::int64_t const part = std::ssize(slices) / round.active;
  bool const first_of_layer = order_.round() == 0;
  bool const last_of_layer = order_.round() + 1 == pass_.rounds();
  std::int64_t const offset = map_.shard_offset(layer, rank_);
  std::int64_t const block =
      map_.shard_offset(GradientOrder::first_of_block(map_.layers(), layer), rank_);
  // A subgroup may hold several layers, and a layer lie in several subgroups: from the end down, as
  // the layers come.
  std::size_t at = subgroups_left_;
  for (std::int64_t end = offset + part; end > offset;) {
    state::Subgroup const& subgroup = subgroups_[--at];
    if (subgroup.begin >= end) {
      continue;  // of a layer above, whose last round is still to come
    }
    std::int64_t const begin = std::max(offset, subgroup.begin);
    auto const count = static_cast<std::size_t>(end - begin);
    bool const there = made_on_device() && held_->holds(begin);
    bool const leaves = there && round.last && !held_->stays(subgroup.index);
    if (!there && !last_of_layer) {
      require(pass_.first(), "GradientSums: a pass of several rounds is all of a step");
      add_piece<A>(layer_sums<A>(begin - block, count), begin, slices, part, begin - offset, round);
    } else if (!there || leaves) {
      auto sums = open_sums<A>(pass_.first() || leaves)
                      .part(static_cast<std::size_t>(begin - subgroup.begin), count);
      if (leaves) {
        take_piece<A>(subgroup, sums.total, begin);
      } else {
        if (settings_.layer_sums) {
          auto const between = layer_sums<A>(begin - block, count);
          sums.partial = between.partial;
          if (!first_of_layer) {
            std::ranges::copy(between.total, sums.total.begin());
          }
        }
        add_piece<A>(sums, begin, slices, part, begin - offset, round);
      }
    }
    if (begin == subgroup.begin && last_of_layer) {
      there && !leaves ? close_held() : close_sums();
    }
    end = begin;
  }
}

template <class T>
template <class A>
void GradientSums<T>::add_piece(SumPlaces<A> const& sums, std::int64_t begin,
                                std::span<T const> slices, std::int64_t part, std::int64_t offset,
                                GradientRound const& round) {
  std::size_t const count = sums.total.size();
  std::int64_t bytes_per_element = round.last ? std::int64_t{sizeof(A)} : 0;
  for (int source = 0; source < round.active; ++source) {
    Addition const how = round.addition(settings_.blocks, source);
    // The sum is written, or read and written; a block's is read, and the total read and written.
    int const passes = (how.begins ? 1 : 2) + (how.ends ? 3 : 0);
    bytes_per_element += std::int64_t{sizeof(T)} + passes * std::int64_t{sizeof(A)};
  }
  pacer_.run(static_cast<double>(bytes_per_element) * static_cast<double>(count), [&] {
    for (int source = 0; source < round.active; ++source) {
      auto const from = static_cast<std::size_t>(source * part + offset);
      add_to<A, T>(sums, slices.subspan(from, count), round.addition(settings_.blocks, source),
                   [](auto const& call) { kernels::host::accumulate(call); });
    }
    if (round.last) {
      kernels::host::chunk_norms<A>({sums.total, norms_of(begin, count)});
    }
  });
}

template <class T>
template <class A>
SumPlaces<A> GradientSums<T>::layer_sums(std::int64_t offset, std::size_t count) {
  auto const from = static_cast<std::size_t>(offset);
  auto const all = layer_sums_.as<A>();
  if (settings_.blocks.planes() == 1) {
    return {all.subspan(from, count), {}};
  }
  return {all.subspan(from, count), all.subspan(all.size() / 2 + from, count)};
}

template <class T>
template <class A>
void GradientSums<T>::take_piece(state::Subgroup const& subgroup, std::span<A> sums,
                                 std::int64_t begin) {
  trace::Scope const scope{settings_.trace, "sums to host", "copy", subgroup.index};
  held_->take(subgroup.index, {begin - subgroup.begin, std::ssize(sums)},
              std::as_writable_bytes(sums), norms_of(begin, sums.size()));
}

template <class T>
std::span<double> GradientSums<T>::norms_of(std::int64_t begin, std::size_t count) {
  return std::span{chunk_norms_}.subspan(static_cast<std::size_t>(begin / chunk_elements),
                                         count / chunk_elements);
}

template <class T>
template <class A>
SumPlaces<A> GradientSums<T>::open_sums(bool is_new) {
  state::Subgroup const& subgroup = subgroups_[subgroups_left_ - 1];
  if (!open_) {
    tiers::Tiers& tiers = *settings_.accumulated;
    open_.emplace(is_new ? tiers.create(subgroup.index) : tiers.fetch(subgroup.index));
  }
  auto const bytes = open_->mutable_bytes();
  auto const size = static_cast<std::size_t>(subgroup.size);
  auto const planes = static_cast<std::size_t>(settings_.extent_planes());
  require(bytes.size() == planes * size * sizeof(A), "GradientSums: an extent of another size");
  auto* const sums = reinterpret_cast<A*>(bytes.data());
  return {{sums, size}, {sums + size, (planes - 1) * size}};
}

template <class T>
void GradientSums<T>::close_sums() {
  state::Subgroup const& subgroup = subgroups_[--subgroups_left_];
  auto const norms = norms_of(subgroup.begin, static_cast<std::size_t>(subgroup.size));
  double const squares = std::accumulate(norms.begin(), norms.end(), 0.0);
  if (!pass_.last) {
    flusher_->commit(std::move(*open_), std::nullopt);
  } else if (stays(subgroup.index)) {
    kernels::GradientView const view = totals_in(open_->bytes());
    flusher_->bring(std::move(*open_), view, *held_, squares);
  } else if (settings_.flushed) {
    kernels::GradientView const view = totals_in(open_->bytes());
    flusher_->flush(std::move(*open_), view, squares);
  } else {
    flusher_->commit(std::move(*open_), squares);
  }
  open_.reset();
}

// The layer's way to the host began, or would have, when the device had added it.
template <class T>
void GradientSums<T>::close_held() {
  state::Subgroup const& subgroup = subgroups_[--subgroups_left_];
  if (pass_.last && receiver_ != nullptr) {
    receiver_->complete(subgroup.index, 0.0);
  }
}

template <class T>
void GradientSums<T>::set_receiver(FinalGradients* receiver) noexcept {
  receiver_ = receiver;
  flusher_->set_receiver(receiver);
}

template <class T>
void GradientSums<T>::abandon() noexcept {
  open_.reset();
  flusher_->stop();
}

template <class T>
void GradientSums<T>::begin_update() {
  (settings_.flushed ? settings_.flushed : settings_.accumulated)->begin_pass();
}

template <class T>
GradientLease GradientSums<T>::fetch(state::Subgroup const& subgroup) {
  bool const flushed = settings_.flushed != nullptr;
  if (stays(subgroup.index)) {
    return {{},
            view_of(held_->gradient(subgroup.index), settings_.accumulate_fp32),
            GradientPlace::device,
            held_->read(subgroup.index)};
  }
  tiers::Lease lease = (flushed ? settings_.flushed : settings_.accumulated)->fetch(subgroup.index);
  kernels::GradientView const view =
      flushed ? view_of(lease.bytes(), true) : totals_in(lease.bytes());
  return {std::move(lease), view};
}

template <class T>
kernels::GradientView GradientSums<T>::totals_in(std::span<std::byte const> bytes) const {
  auto const planes = static_cast<std::size_t>(settings_.extent_planes());
  return view_of(bytes.first(bytes.size() / planes), settings_.accumulate_fp32);
}

template <class T>
kernels::GradientView GradientSums<T>::view_of(std::span<std::byte const> bytes, bool as_fp32) {
  if (as_fp32) {
    return std::span{reinterpret_cast<float const*>(bytes.data()), bytes.size() / sizeof(float)};
  }
  return std::span{reinterpret_cast<T const*>(bytes.data()), bytes.size() / sizeof(T)};
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_RUN_TYPES, GradientSums)

}  // namespace offstage::update
