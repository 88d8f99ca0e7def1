#include "update/gradient_sums.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.hpp"
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
      pacer_{settings_.host_sum_rate},
      flusher_{std::make_unique<GradientFlusher>(settings_.flushed.get(), settings_.on_final)} {
  require(settings_.accumulated != nullptr, "GradientSums: sums need a tier");
}

template <class T>
void GradientSums<T>::set_held(HeldGradients* held, bool made_there) {
  held_ = held;
  made_there_ = made_there;
}

template <class T>
void GradientSums<T>::begin_round(int active, bool first, bool last) {
  require(!open_, "GradientSums: a round ends before the next begins");
  active_ = active;
  first_ = first;
  last_ = last;
  subgroups_left_ = subgroups_.size();
  settings_.accumulated->begin_pass();
  if (last && settings_.flushed) {
    settings_.flushed->begin_pass();
  }
}

template <class T>
void GradientSums<T>::end_round() {
  flusher_->drain();
}

template <class T>
void GradientSums<T>::add(int layer, std::span<T const> slices) {
  if (settings_.accumulate_fp32) {
    add_slices<float>(layer, slices);
  } else {
    add_slices<T>(layer, slices);
  }
}

template <class T>
template <class A>
void GradientSums<T>::add_slices(int layer, std::span<T const> slices) {
  std::int64_t const part = std::ssize(slices) / active_;
  std::int64_t const offset = map_.shard_offset(layer, rank_);
  // A subgroup may hold several layers, and a layer lie in several subgroups: from the end down, as
  // the layers come.
  for (std::int64_t end = offset + part; end > offset;) {
    state::Subgroup const& subgroup = subgroups_[subgroups_left_ - 1];
    std::int64_t const begin = std::max(offset, subgroup.begin);
    auto const count = static_cast<std::size_t>(end - begin);
    bool const there = made_on_device() && held_->holds(subgroup.index);
    bool const leaves = there && last_ && !held_->stays(subgroup.index);
    if (!there || leaves) {
      auto const sums = open_sums<A>(first_ || leaves)
                            .subspan(static_cast<std::size_t>(begin - subgroup.begin), count);
      leaves ? take_piece<A>(subgroup, sums, begin)
             : add_piece<A>(sums, begin, slices, part, begin - offset);
    }
    if (begin == subgroup.begin) {
      there && !leaves ? close_held() : close_sums();
    }
    end = begin;
  }
}

template <class T>
template <class A>
void GradientSums<T>::add_piece(std::span<A> sums, std::int64_t begin, std::span<T const> slices,
                                std::int64_t part, std::int64_t offset) {
  std::int64_t bytes_per_element = last_ ? std::int64_t{sizeof(A)} : 0;
  for (int source = 0; source < active_; ++source) {
    int const passes = first_ && source == 0 ? 1 : 2;  // written, or read and written
    bytes_per_element += std::int64_t{sizeof(T)} + passes * std::int64_t{sizeof(A)};
  }
  pacer_.run(static_cast<double>(bytes_per_element) * static_cast<double>(sums.size()), [&] {
    for (int source = 0; source < active_; ++source) {
      auto const from = static_cast<std::size_t>(source * part + offset);
      kernels::host::accumulate<A, T>(
          {sums, slices.subspan(from, sums.size()), first_ && source == 0});
    }
    if (last_) {
      kernels::host::chunk_norms<A>({sums, norms_of(begin, sums.size())});
    }
  });
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
std::span<A> GradientSums<T>::open_sums(bool is_new) {
  state::Subgroup const& subgroup = subgroups_[subgroups_left_ - 1];
  if (!open_) {
    tiers::Tiers& tiers = *settings_.accumulated;
    open_.emplace(is_new ? tiers.create(subgroup.index) : tiers.fetch(subgroup.index));
  }
  auto const bytes = open_->mutable_bytes();
  auto const size = static_cast<std::size_t>(subgroup.size);
  require(bytes.size() == size * sizeof(A), "GradientSums: an extent of another size");
  return {reinterpret_cast<A*>(bytes.data()), size};
}

template <class T>
void GradientSums<T>::close_sums() {
  state::Subgroup const& subgroup = subgroups_[--subgroups_left_];
  auto const norms = norms_of(subgroup.begin, static_cast<std::size_t>(subgroup.size));
  double const squares = std::accumulate(norms.begin(), norms.end(), 0.0);
  if (!last_) {
    flusher_->commit(std::move(*open_), std::nullopt);
  } else if (stays(subgroup.index)) {
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
void GradientSums<T>::close_held() {
  state::Subgroup const& subgroup = subgroups_[--subgroups_left_];
  if (last_ && settings_.on_final) {
    settings_.on_final(subgroup.index, 0.0);
  }
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
  GradientView const view = view_of(lease.bytes(), flushed || settings_.accumulate_fp32);
  return {std::move(lease), view};
}

template <class T>
GradientView GradientSums<T>::view_of(std::span<std::byte const> bytes, bool as_fp32) {
  if (as_fp32) {
    return std::span{reinterpret_cast<float const*>(bytes.data()), bytes.size() / sizeof(float)};
  }
  return std::span{reinterpret_cast<T const*>(bytes.data()), bytes.size() / sizeof(T)};
}

template <class T>
std::vector<tiers::Traffic> GradientSums<T>::traffic() const {
  std::vector<tiers::Traffic> traffic{settings_.accumulated->traffic()};
  if (settings_.flushed) {
    traffic.push_back(settings_.flushed->traffic());
  }
  return traffic;
}

template class GradientSums<float>;
template class GradientSums<bfloat16>;
template class GradientSums<float16>;

}  // namespace offstage::update
