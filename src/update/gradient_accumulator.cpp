#include "update/gradient_accumulator.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "base/watch.hpp"
#include "gradient.hpp"

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
Bytes send_bytes(state::ShardMap const& map, device::Kind kind) {
  // The emulated device's memory is the host's: slices are sent from where they are.
  return kind == device::Kind::host ? 0 : map.largest_layer() * static_cast<Bytes>(sizeof(T));
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
                                             device::Kind kind) {
  return send_bytes<T>(map, kind) + receive_bytes<T>(map, rank);
}

template <class T>
GradientAccumulator<T>::GradientAccumulator(state::ShardMap const& map,
                                            mpi::Communicator const& comm, device::Stream& stream,
                                            bool accumulate_fp32)
    : map_{map},
      comm_{comm},
      stream_{stream},
      accumulate_fp32_{accumulate_fp32},
      started_(map.layers().size()),
      accumulator_{map.shard_elements(comm.rank()) *
                   static_cast<Bytes>(accumulate_fp32 ? sizeof(float) : sizeof(T))},
      send_{send_bytes<T>(map, stream.kind())},
      receive_{receive_bytes<T>(map, comm.rank())} {}

template <class T>
void GradientAccumulator<T>::begin_step() noexcept {
  std::fill(started_.begin(), started_.end(), false);
}

template <class T>
void GradientAccumulator<T>::begin_round(int active) noexcept {
  active_ = active;
}

template <class T>
void GradientAccumulator<T>::add(int layer, std::span<T const> gradient) {
  Waiting const waiting{"the gradient of layer", layer};
  require(active_ >= 1 && active_ <= comm_.size(), "GradientAccumulator: begin_round comes first");
  require(gradient.empty() == (comm_.rank() >= active_),
          "GradientAccumulator: an active rank brings a gradient, an idle one none");
  if (!gradient.empty() && send_.size() > 0) {
    auto const staged = send_.template as<T>().first(gradient.size());
    stream_.copy(staged.data(), gradient.data(), static_cast<Bytes>(gradient.size_bytes()),
                 device::Copy::device_to_host);
    gradient = staged;
  }
  stream_.synchronize();
  if (comm_.size() == 1) {
    add_slices(layer, gradient);
    return;
  }

  auto const ranks = static_cast<std::size_t>(comm_.size());
  std::vector<mpi::Slice> send_parts(ranks);
  if (!gradient.empty()) {
    send_parts = map_.slices(layer, sizeof(T));
  }
  std::vector<mpi::Slice> receive_parts(ranks);
  Bytes const part_bytes =
      map_.chunks(layer, comm_.rank()).count * chunk_elements * static_cast<Bytes>(sizeof(T));
  for (std::size_t source = 0; source < static_cast<std::size_t>(active_); ++source) {
    receive_parts[source] = {static_cast<Bytes>(source) * part_bytes, part_bytes};
  }
  comm_.all_to_all(std::as_bytes(gradient), send_parts, receive_.bytes(), receive_parts);
  add_slices(layer, receive_.template as<T>().first(static_cast<std::size_t>(active_ * part_bytes) /
                                                    sizeof(T)));
}

template <class T>
void GradientAccumulator<T>::add_slices(int layer, std::span<T const> slices) {
  std::size_t const part = slices.size() / static_cast<std::size_t>(active_);
  auto const offset = static_cast<std::size_t>(map_.shard_offset(layer, comm_.rank()));
  bool first = !started_[static_cast<std::size_t>(layer)];
  started_[static_cast<std::size_t>(layer)] = true;
  for (std::size_t source = 0; source < static_cast<std::size_t>(active_); ++source) {
    auto const slice = slices.subspan(source * part, part);
    if (accumulate_fp32_) {
      kernels::host::accumulate<float, T>(
          {accumulator_.template as<float>().subspan(offset, part), slice, first});
    } else {
      kernels::host::accumulate<T, T>(
          {accumulator_.template as<T>().subspan(offset, part), slice, first});
    }
    first = false;
  }
}

template <class T>
double GradientAccumulator<T>::norm() const {
  auto const shard_chunks =
      static_cast<std::size_t>(map_.shard_elements(comm_.rank()) / chunk_elements);
  std::vector<double> mine(shard_chunks);
  if (accumulate_fp32_) {
    kernels::host::chunk_norms<float>({fp32(), mine});
  } else {
    kernels::host::chunk_norms<T>({native(), mine});
  }
  // Layer by layer to rank 0, so that it sums in (layer, chunk) order within bounded memory.
  double sum = 0.0;
  std::vector<double> all;
  for (int layer = 0; layer < static_cast<int>(map_.layers().size()); ++layer) {
    auto const first =
        static_cast<std::size_t>(map_.shard_offset(layer, comm_.rank()) / chunk_elements);
    auto const count = static_cast<std::size_t>(map_.chunks(layer, comm_.rank()).count);
    auto parts = map_.slices(layer, 1);
    for (mpi::Slice& part : parts) {
      part.offset = part.offset / chunk_elements * static_cast<Bytes>(sizeof(double));
      part.size = part.size / chunk_elements * static_cast<Bytes>(sizeof(double));
    }
    all.resize(static_cast<std::size_t>(map_.layers()[static_cast<std::size_t>(layer)].chunks()));
    comm_.gather(std::as_bytes(std::span{mine}.subspan(first, count)),
                 std::as_writable_bytes(std::span{all}), parts, 0);
    if (comm_.rank() == 0) {
      for (double const chunk_sum : all) {
        sum += chunk_sum;
      }
    }
  }
  return std::sqrt(comm_.broadcast_value(sum, 0));
}

template <class T>
std::span<float const> GradientAccumulator<T>::fp32() const noexcept {
  return accumulator_.template as<float const>();
}

template <class T>
std::span<T const> GradientAccumulator<T>::native() const noexcept {
  return accumulator_.template as<T const>();
}

template class GradientAccumulator<float>;
template class GradientAccumulator<bfloat16>;
template class GradientAccumulator<float16>;

}  // namespace offstage::update
