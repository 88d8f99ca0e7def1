#include "parameters/streamed_parameters.hpp"

#include <algorithm>
#include <utility>

#include "base/chunk.hpp"
#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "base/watch.hpp"

namespace offstage::parameters {
namespace {

constexpr std::size_t most_held = 2;
constexpr char const* row = "parameters ahead";

std::vector<int> large_layers(state::ShardMap const& map) {
  auto const sizes = map.layer_slot_sizes();
  std::vector<int> large;
  for (int layer = 0; layer < static_cast<int>(map.layers().size()); ++layer) {
    if (sizes.is_large(map.gathered_elements(layer))) {
      large.push_back(layer);
    }
  }
  return large;
}

}  // namespace

template <class T>
Bytes StreamedParameters<T>::host_bytes(state::ShardMap const& map, state::Route route) {
  if (route == state::Route::in_place || map.ranks() == 1) {
    return 0;
  }
  Bytes const whole = map.largest_gathered() * static_cast<Bytes>(sizeof(T));
  return route == state::Route::staged ? whole : whole / map.ranks();
}

template <class T>
Bytes StreamedParameters<T>::device_bytes(state::ShardMap const& map, int slots) {
  return map.layer_slot_sizes().elements(slots) * static_cast<Bytes>(sizeof(T));
}

template <class T>
StreamedParameters<T>::StreamedParameters(state::ShardMap const& map, state::RankLink& link,
                                          device::Device& device, device::Stream& model,
                                          std::unique_ptr<ShardHome<T>> home,
                                          StreamSettings const& settings)
    : map_{map},
      link_{link},
      model_{model},
      trace_{settings.trace},
      visible_{device.host_visible()},
      home_{std::move(home)},
      staging_{home_->has_whole_layers() ? 0 : host_bytes(map, link.route())},
      arrived_(static_cast<std::size_t>(settings.slots) + 1),
      schedule_{settings.slots, large_layers(map)},
      freed_(static_cast<std::size_t>(settings.slots) + 1) {
  require(link.size() == 1 || (link.route() == state::Route::in_place) == visible_,
          "StreamedParameters: layers are used in place where host code sees the device");
  auto const sizes = map.layer_slot_sizes();
  for (int i = 0; i <= settings.slots; ++i) {
    std::int64_t const elements = i < settings.slots ? sizes.usual : sizes.large;
    slots_.push_back(device.allocate(elements * static_cast<Bytes>(sizeof(T)),
                                     "a layer of streamed parameters (parameters.home)"));
  }
  if (staging_.size() > 0) {
    pinned_ = device.pin(staging_.bytes());
  }
  if (!visible_) {
    stream_ = device.make_stream("parameters ahead");
  }
  if (link.size() == 1) {
    thread_.emplace("parameters", [this] { run_ahead(); });
  }
}

template <class T>
void StreamedParameters<T>::set_readiness(state::Readiness* readiness) {
  readiness_ = readiness;
  home_->set_readiness(readiness);
}

template <class T>
void StreamedParameters<T>::begin() {
  {
    std::scoped_lock const lock{mutex_};
    require(held_.empty() && acquired_ == expected(),
            "StreamedParameters: what was expected before is not over");
  }
  schedule_.forget();
  home_->begin();
}

template <class T>
void StreamedParameters<T>::expect(std::span<int const> layers) {
  std::vector<Use> uses;
  std::vector<int> fills;
  for (int const layer : layers) {
    auto const& next = uses.emplace_back(Use{schedule_.add(layer)});
    if (next.fill) {
      fills.push_back(layer);
    }
  }
  home_->expect(fills);
  {
    std::scoped_lock const lock{mutex_};
    uses_.insert(uses_.end(), uses.begin(), uses.end());
  }
  changed_.notify_all();
}

template <class T>
std::span<T const> StreamedParameters<T>::acquire(int layer) {
  Waiting const waiting{"layer", layer};
  std::unique_lock lock{mutex_};
  require(held_.size() < most_held, "StreamedParameters: two layers are held already");
  std::int64_t const index = acquired_;
  require(index < expected() && use(index).layer == layer,
          "StreamedParameters: another layer is expected");
  require(!use(index).fill || has_ended(use(index).after),
          "StreamedParameters: a layer is held beyond the use that follows the next");
  Use const now = use(index);
  if (thread_) {
    changed_.wait(lock, [&] { return filled_ > index || error_; });
    if (filled_ <= index) {
      std::rethrow_exception(error_);
    }
    wait_for_arrival(now);
  } else {
    gather_ahead(lock, now, index);
  }
  ++acquired_;
  held_.push_back(index);
  auto const elements = map_.layers()[static_cast<std::size_t>(layer)].padded_elements();
  return slot(now).first(static_cast<std::size_t>(elements));
}

template <class T>
void StreamedParameters<T>::release(int layer, std::shared_ptr<device::Event> done) {
  {
    std::scoped_lock const lock{mutex_};
    auto const found =
        std::ranges::find_if(held_, [&](std::int64_t index) { return use(index).layer == layer; });
    require(found != held_.end(), "StreamedParameters: release of a layer that is not held");
    Use& ended = use(*found);
    ended.ended = true;
    freed_[static_cast<std::size_t>(ended.slot)] = std::move(done);
    held_.erase(found);
    while (!uses_.empty() && uses_.front().ended) {
      uses_.pop_front();
      ++first_;
    }
  }
  changed_.notify_all();
}

template <class T>
void StreamedParameters<T>::run_ahead() noexcept {
  std::unique_lock lock{mutex_};
  while (!stopping_) {
    {
      Waiting const idle{"a layer to bring, or a slot for it"};
      changed_.wait(lock, [this] { return stopping_ || may_fill(); });
    }
    if (stopping_) {
      return;
    }
    try {
      fill_next(lock);
    } catch (...) {
      lock.lock();
      error_ = std::current_exception();
      stopping_ = true;
    }
    changed_.notify_all();
  }
}

template <class T>
void StreamedParameters<T>::fill_next(std::unique_lock<std::mutex>& lock) {
  Use const next = use(filled_);
  if (next.fill) {
    auto const freed = freed_[static_cast<std::size_t>(next.slot)];
    lock.unlock();
    bring(next, freed);
    lock.lock();
    freed_[static_cast<std::size_t>(next.slot)] = nullptr;
  }
  ++filled_;
}

// The layers that are gathered ahead depend only on the layers that were acquired and released. If
// they depended on readiness or arrivals, ranks would gather different layers.
template <class T>
void StreamedParameters<T>::gather_ahead(std::unique_lock<std::mutex>& lock,
                                         plan::LayerSlots::Use const& now, std::int64_t index) {
  while (filled_ <= index) {
    fill_next(lock);
  }
  if (visible_) {
    return;
  }
  wait_for_arrival(now);
  while (filled_ <= index + 1 && may_fill()) {
    fill_next(lock);
  }
}

template <class T>
void StreamedParameters<T>::wait_for_arrival(plan::LayerSlots::Use const& use) {
  if (auto const& arrived = arrived_[static_cast<std::size_t>(use.slot)]) {
    model_.wait(*arrived);
  }
}

template <class T>
void StreamedParameters<T>::bring(plan::LayerSlots::Use const& use,
                                  std::shared_ptr<device::Event> const& freed) {
  auto const whole = slot(use).first(static_cast<std::size_t>(map_.gathered_elements(use.layer)));
  trace::Scope const scope{trace_, row, "bring", use.layer};
  if (link_.size() > 1 && !home_->has_whole_layers()) {
    gather(use.layer, whole, freed);
  } else {
    bring_from_home(use.layer, whole, freed);
  }
  arrived_[static_cast<std::size_t>(use.slot)] = visible_ ? nullptr : stream_->record();
}

template <class T>
void StreamedParameters<T>::bring_from_home(int layer, std::span<T> whole,
                                            std::shared_ptr<device::Event> const& freed) {
  wait_for(freed);
  home_->bring(layer, [&](std::int64_t offset, std::span<T const> part) {
    copy(whole.subspan(static_cast<std::size_t>(offset)), part);
    if (!visible_ && !home_->stays_in_place()) {
      stream_->synchronize();  // the part may be gone when this returns
    }
  });
}

template <class T>
void StreamedParameters<T>::wait_for(std::shared_ptr<device::Event> const& freed) {
  if (freed && visible_) {
    freed->wait();
  } else if (freed) {
    state::queue_behind(*stream_, *freed);
  }
}

template <class T>
void StreamedParameters<T>::gather(int layer, std::span<T> whole,
                                   std::shared_ptr<device::Event> const& freed) {
  state::ChunkRange const mine = map_.chunks(layer, link_.rank());
  auto const offset = static_cast<std::size_t>(mine.first * chunk_elements);
  auto const size = static_cast<std::size_t>(mine.count * chunk_elements);
  bool const staged = link_.route() == state::Route::staged;
  if (!staged) {
    wait_for(freed);
  }
  if (sent_) {
    Waiting const waiting{"the layer before to leave host memory"};
    sent_->wait();
  }
  // Host code puts this rank's part together if it may write there. A home gives the part in
  // pieces, which are valid only while `take` runs.
  auto const gathered = staged ? staging_.as<T>().first(whole.size()) : whole;
  auto const own = gathered.subspan(offset, size);
  bool const from_staging = link_.route() == state::Route::direct;
  auto const written = from_staging ? staging_.as<T>().first(size) : own;
  home_->bring(layer, [&](std::int64_t at, std::span<T const> part) {
    std::ranges::copy(part, written.begin() + static_cast<std::ptrdiff_t>(at));
  });
  if (from_staging) {
    copy(own, written);
    sent_ = stream_->record();
  }
  link_.all_gather(stream_ ? *stream_ : model_, std::as_writable_bytes(gathered));
  if (staged) {
    wait_for(freed);  // only now, because the exchange between ranks need not wait
    copy(whole, gathered);
    sent_ = stream_->record();
  }
}

template <class T>
void StreamedParameters<T>::copy(std::span<T> target, std::span<T const> source) {
  if (visible_) {
    std::ranges::copy(source, target.begin());
  } else {
    stream_->copy(target.data(), source.data(), static_cast<Bytes>(source.size_bytes()),
                  device::Copy::host_to_device);
  }
}

template <class T>
std::span<T> StreamedParameters<T>::slot(plan::LayerSlots::Use const& use) const {
  return slots_[static_cast<std::size_t>(use.slot)].template as<T>();
}

template <class T>
void StreamedParameters<T>::stop() noexcept {
  {
    std::scoped_lock const lock{mutex_};
    stopping_ = true;
  }
  changed_.notify_all();
  if (auto* const readiness = std::exchange(readiness_, nullptr)) {
    readiness->fail(std::make_exception_ptr(
        PreconditionError{"StreamedParameters: nothing is brought any more"}));
  }
  home_->stop();
  thread_.reset();
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_RUN_TYPES, StreamedParameters)

}  // namespace offstage::parameters
