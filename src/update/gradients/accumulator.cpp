#include "update/gradients/accumulator.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "base/watch.hpp"
#include "update/gradients/norm_tree.hpp"

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

/// Layers that leave the device of several ranks before the oldest of them is exchanged.
constexpr std::size_t most_staged = 2;
/// One layer's slices are added while the next one's come.
constexpr int receive_buffers = 2;

template <class T>
std::span<T const> elements(std::span<std::byte const> bytes) {
  return {reinterpret_cast<T const*>(bytes.data()), bytes.size() / sizeof(T)};
}

}  // namespace

template <class T>
Bytes GradientAccumulator<T>::exchange_bytes(state::ShardMap const& map, int rank,
                                             state::Route route, Bytes layer_sum) {
  Bytes const received = receive_bytes<T>(map, rank);
  Bytes const sums = GradientSums<T>::block_bytes(map, rank, layer_sum);
  switch (route) {
    case state::Route::in_place:
      return sums + received;
    case state::Route::staged:
      return sums + GradientTransfer::host_bytes(layer_bytes<T>(map)) + receive_buffers * received;
    case state::Route::direct:
      break;
  }
  return sums + SliceTransfer::host_bytes(received);
}

template <class T>
Bytes GradientAccumulator<T>::device_bytes(state::ShardMap const& map, int rank,
                                           state::Route route) {
  return route == state::Route::direct ? receive_bytes<T>(map, rank) : 0;
}

template <class T>
GradientAccumulator<T>::GradientAccumulator(state::ShardMap const& map, state::RankLink& link,
                                            device::Device& device, device::Stream& stream,
                                            std::vector<state::Subgroup> const& subgroups,
                                            GradientSettings settings)
    : map_{map},
      link_{link},
      stream_{stream},
      sums_{map, link.rank(), subgroups, std::move(settings)},
      trace_{sums_.settings().trace} {
  state::Route const route = link.route();
  require((route == state::Route::in_place) == device.host_visible(),
          "GradientAccumulator: gradients are used in place where host code sees the device");
  require(link.size() > 1 || route != state::Route::direct,
          "GradientAccumulator: one rank passes nothing on");
  Bytes const received = receive_bytes<T>(map, link.rank());
  if (route == state::Route::staged) {
    transfer_ = std::make_unique<GradientTransfer>(device, stream, layer_bytes<T>(map), trace_);
  } else if (route == state::Route::direct) {
    slices_ = std::make_unique<SliceTransfer>(device, stream, link, received, trace_,
                                              sums_.settings().memory);
  }
  if (link.size() > 1 && route != state::Route::direct) {
    int const count = route == state::Route::in_place ? 1 : receive_buffers;
    receive_ = std::make_unique<StagingBuffers>(count, received, nullptr);  // MPI's
  }
  if (route != state::Route::in_place) {
    auto add = [this](int layer, std::span<std::byte const> slices) {
      sums_.add(layer, elements<T>(slices));
    };
    auto fail = [this] {
      if (held_ != nullptr) {
        held_->give_up();
      }
    };
    summing_ = std::make_unique<SummingThread>(add, fail);
  }
}

template <class T>
void GradientAccumulator<T>::set_held(HeldGradients* held) {
  require(held == nullptr || (summing_ && !sums_.settings().flushed),
          "GradientAccumulator: a device that the host does not see can hold what is not flushed");
  held_ = held;
  sums_.set_held(held, link_.size() == 1 || slices_ != nullptr);
}

template <class T>
void GradientAccumulator<T>::begin_round(int active, bool last) {
  require(active >= 1 && active <= link_.size(),
          "GradientAccumulator: a round has an active rank, and no more than there are");
  begin_pass({.micro_batch = next_, .micro_batches = active, .ranks = link_.size(), .last = last});
}

template <class T>
void GradientAccumulator<T>::begin_rounds_in_layers(int micro_batches) {
  require(next_ == 0 && micro_batches >= 1,
          "GradientAccumulator: all rounds of a step are one pass");
  begin_pass({.micro_batches = micro_batches, .ranks = link_.size(), .last = true});
}

template <class T>
void GradientAccumulator<T>::begin_pass(GradientPass const& pass) {
  require(order_.is_over(), "GradientAccumulator: end_round comes first");
  sums_.begin_pass(pass);
  pass_ = pass;
  order_ = {map_.layers(), pass.rounds()};
}

template <class T>
void GradientAccumulator<T>::end_round() {
  require(order_.is_over(), "GradientAccumulator: every layer comes in every round");
  if (summing_) {
    summing_->rethrow();
  }
  sums_.end_pass();
  if (pass_.last && sums_.made_on_device()) {
    held_->collect_norms(stream_, sums_.chunk_norms());
  }
  next_ += pass_.micro_batches;
}

template <class T>
void GradientAccumulator<T>::abandon() noexcept {
  if (summing_) {
    summing_->stop();
  }
  sums_.abandon();
}

template <class T>
std::shared_ptr<device::Event> GradientAccumulator<T>::add(int layer, std::span<T const> gradient) {
  Waiting const waiting{"the gradient of layer", layer};
  require(!order_.is_over() && layer == order_.layer(),
          "GradientAccumulator: after begin_round every layer comes once, the last first");
  GradientRound const round = pass_.round(order_.round());
  require(gradient.empty() == (link_.rank() >= round.active),
          "GradientAccumulator: an active rank brings a gradient, an idle one none");
  sums_.rethrow();
  std::shared_ptr<device::Event> left;
  if (!summing_) {
    add_in_place(layer, gradient, round);
  } else {
    summing_->rethrow();
    left = slices_ ? add_direct(layer, gradient, round) : add_staged(layer, gradient, round);
  }
  order_.next();
  if (!order_.is_over()) {
    return left;
  }
  finish_round();
  return nullptr;
}

template <class T>
void GradientAccumulator<T>::add_in_place(int layer, std::span<T const> gradient,
                                          GradientRound const& round) {
  stream_.synchronize();
  if (link_.size() == 1) {
    sums_.add(layer, gradient);
    return;
  }
  auto const received = receive_->take();
  exchange(layer, std::as_bytes(gradient), round, received.memory());
  auto const bytes = static_cast<std::size_t>(received_bytes(layer, round));
  sums_.add(layer, elements<T>(received.memory().first(bytes)));
}

template <class T>
std::shared_ptr<device::Event> GradientAccumulator<T>::add_staged(int layer,
                                                                  std::span<T const> gradient,
                                                                  GradientRound const& round) {
  // The layer before the last, which has arrived, or will before the device is idle: two are in its
  // queue.
  if (staged_.size() == most_staged) {
    exchange_staged();
  }
  std::optional<GradientArrival> arrival;
  if (!gradient.empty()) {
    // Of one rank the layer is its slice; of several nothing is added before it has left.
    arrival.emplace(transfer_->begin(layer, std::as_bytes(gradient),
                                     add_held(stream_, layer, gradient, round)));
  }
  auto before = std::exchange(left_, arrival ? arrival->arrived() : nullptr);
  if (link_.size() > 1) {
    staged_.push_back({layer, round, std::move(arrival)});
  } else {
    summing_->put(*std::move(arrival));
  }
  return before;
}

template <class T>
void GradientAccumulator<T>::exchange_staged() {
  Staged next = std::move(staged_.front());
  staged_.pop_front();
  Waiting const waiting{"the ranks' slices of the gradient of layer", next.layer};
  auto const gradient = next.gradient ? next.gradient->wait() : std::span<std::byte const>{};
  auto received = receive_->take();
  exchange(next.layer, gradient, next.round, received.memory());
  summing_->put({next.layer, std::move(received), received_bytes(next.layer, next.round)});
}

// Not by the link, which would wait for all that the model's stream has.
template <class T>
void GradientAccumulator<T>::exchange(int layer, std::span<std::byte const> gradient,
                                      GradientRound const& round, std::span<std::byte> received) {
  link_.comm().all_to_all(
      gradient, send_parts(layer, !gradient.empty()), received, receive_parts(layer, round),
      map_.gathered_elements(layer) / link_.size() * static_cast<Bytes>(sizeof(T)));
}

template <class T>
std::shared_ptr<device::Event> GradientAccumulator<T>::add_direct(int layer,
                                                                  std::span<T const> gradient,
                                                                  GradientRound const& round) {
  auto before = exchange_direct();
  slices_->begin(layer, std::as_bytes(gradient), send_parts(layer, !gradient.empty()),
                 receive_parts(layer, round));
  passing_ = {layer, round};
  return before;
}

template <class T>
std::shared_ptr<device::Event> GradientAccumulator<T>::exchange_direct() {
  if (!passing_) {
    return nullptr;
  }
  auto const [layer, round] = *std::exchange(passing_, std::nullopt);
  auto const received = elements<T>(slices_->exchange());
  auto sent = slices_->stream().record();
  summing_->put(slices_->finish(add_held(slices_->stream(), layer, received, round)));
  return sent;
}

template <class T>
void GradientAccumulator<T>::finish_round() {
  static_cast<void>(exchange_direct());
  while (!staged_.empty()) {
    exchange_staged();
  }
  left_ = nullptr;
  if (summing_) {
    summing_->drain();
  }
}

template <class T>
std::vector<Slice> GradientAccumulator<T>::add_held(device::Stream& stream, int layer,
                                                    std::span<T const> slices,
                                                    GradientRound const& round) {
  if (!sums_.made_on_device() || slices.empty()) {
    return {{0, static_cast<Bytes>(slices.size_bytes())}};
  }
  std::int64_t const begin = map_.shard_offset(layer, link_.rank());
  auto const length = slices.size() / static_cast<std::size_t>(round.active);
  constexpr auto element = static_cast<Bytes>(sizeof(T));
  std::vector<Slice> leaving;
  for (int source = 0; source < round.active; ++source) {
    auto const offset = static_cast<std::size_t>(source) * length;
    auto const slice = slices.subspan(offset, length);
    Addition const how = round.addition(sums_.settings().blocks, source);
    auto const parts = sums_.settings().accumulate_fp32
                           ? held_->add<float, T>(stream, begin, slice, how)
                           : held_->add<T, T>(stream, begin, slice, how);
    for (Range const& part : parts) {
      Bytes const from = (static_cast<Bytes>(offset) + part.begin) * element;
      if (!leaving.empty() && leaving.back().offset + leaving.back().size == from) {
        leaving.back().size += part.count * element;
      } else {
        leaving.push_back({from, part.count * element});
      }
    }
  }
  return leaving;
}

template <class T>
std::vector<Slice> GradientAccumulator<T>::send_parts(int layer, bool any) const {
  return any ? map_.slices(layer, sizeof(T))
             : std::vector<Slice>(static_cast<std::size_t>(link_.size()));
}

template <class T>
std::vector<Slice> GradientAccumulator<T>::receive_parts(int layer,
                                                         GradientRound const& round) const {
  std::vector<Slice> parts(static_cast<std::size_t>(link_.size()));
  Bytes const part_bytes =
      map_.chunks(layer, link_.rank()).count * chunk_elements * static_cast<Bytes>(sizeof(T));
  for (std::size_t source = 0; source < static_cast<std::size_t>(round.active); ++source) {
    parts[source] = {static_cast<Bytes>(source) * part_bytes, part_bytes};
  }
  return parts;
}

template <class T>
Bytes GradientAccumulator<T>::received_bytes(int layer, GradientRound const& round) const {
  return round.active * map_.chunks(layer, link_.rank()).count * chunk_elements *
         static_cast<Bytes>(sizeof(T));
}

template <class T>
double GradientAccumulator<T>::norm() const {
  require(pass_.last && order_.is_over(),
          "GradientAccumulator: the norm is known after the last round");
  NormTree mine;
  auto next = sums_.chunk_norms().begin();
  std::int64_t first_of_layer = 0;
  for (int layer = 0; layer < static_cast<int>(map_.layers().size()); ++layer) {
    state::ChunkRange const own = map_.chunks(layer, link_.rank());
    for (std::int64_t i = 0; i < own.count; ++i) {
      mine.add(first_of_layer + own.first + i, *next++);
    }
    first_of_layer += map_.layers()[static_cast<std::size_t>(layer)].chunks();
  }
  auto nodes = link_.comm().fold(
      mine.nodes(), [](std::vector<NormNode>& of_ranks, std::span<NormNode const> of_next) {
        NormTree tree{std::move(of_ranks)};
        tree.join(of_next);
        of_ranks = tree.nodes();
      });
  double const sum = link_.rank() == 0 ? NormTree{std::move(nodes)}.root() : 0.0;
  return std::sqrt(link_.comm().broadcast_value(sum, 0));
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_RUN_TYPES, GradientAccumulator)

}  // namespace offstage::update
