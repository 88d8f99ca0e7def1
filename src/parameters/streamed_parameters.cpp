#include "parameters/streamed_parameters.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::parameters {
namespace {

constexpr std::size_t most_held = 2;
constexpr char const* row = "parameters ahead";

}  // namespace

template <class T>
Bytes StreamedParameters<T>::host_bytes(state::ShardMap const& map, bool host_visible) {
  return state::WorkingCopy<T>::host_bytes(map, host_visible);
}

template <class T>
Bytes StreamedParameters<T>::device_bytes(state::ShardMap const& map, int slots) {
  return slots * map.largest_layer() * static_cast<Bytes>(sizeof(T));
}

template <class T>
StreamedParameters<T>::StreamedParameters(state::ShardMap const& map, mpi::Communicator const& comm,
                                          device::Device& device,
                                          std::unique_ptr<ShardHome<T>> home,
                                          StreamSettings const& settings)
    : map_{map},
      comm_{comm},
      trace_{settings.trace},
      direct_{device.host_visible()},
      home_{std::move(home)},
      staging_{host_bytes(map, direct_)},
      arrived_(static_cast<std::size_t>(settings.slots)),
      schedule_{settings.slots},
      freed_(static_cast<std::size_t>(settings.slots)) {
  for (int i = 0; i < settings.slots; ++i) {
    slots_.push_back(
        device.allocate(device_bytes(map, 1), "a layer of streamed parameters (parameters.home)"));
  }
  if (staging_.size() > 0) {
    pinned_ = device.pin(staging_.bytes());
  }
  if (!direct_) {
    stream_ = device.make_stream("parameters ahead");
  }
  if (comm.size() == 1) {
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
    auto const freed = std::exchange(freed_[static_cast<std::size_t>(next.slot)], nullptr);
    lock.unlock();
    bring(next, freed);
    lock.lock();
  }
  ++filled_;
}

// Which layers are gathered ahead depends on what was acquired and released alone, not on what is ready or has
// arrived: else the ranks would gather different layers.
template <class T>
void StreamedParameters<T>::gather_ahead(std::unique_lock<std::mutex>& lock,
                                         SlotSchedule::Use const& now, std::int64_t index) {
  while (filled_ <= index) {
    fill_next(lock);
  }
  if (direct_) {
    return;
  }
  if (auto const& arrived = arrived_[static_cast<std::size_t>(now.slot)]) {
    arrived->wait();
  }
  while (filled_ <= index + 1 && may_fill()) {
    fill_next(lock);
  }
}

template <class T>
void StreamedParameters<T>::bring(SlotSchedule::Use const& use,
                                  std::shared_ptr<device::Event> const& freed) {
  auto const& layer = map_.layers()[static_cast<std::size_t>(use.layer)];
  auto const whole = slot(use).first(static_cast<std::size_t>(layer.padded_elements()));
  trace::Scope const scope{trace_, row, "bring", use.layer};
  if (freed && direct_) {
    freed->wait();
  } else if (freed) {
    stream_->wait(*freed);
  }
  if (comm_.size() > 1) {
    gather(use.layer, whole);
    arrived_[static_cast<std::size_t>(use.slot)] = direct_ ? nullptr : stream_->record();
    return;
  }
  home_->bring(use.layer, [&](std::int64_t offset, std::span<T const> part) {
    copy(whole.subspan(static_cast<std::size_t>(offset)), part);
    if (!direct_) {
      stream_->synchronize();  // the part may be gone when this returns
    }
  });
}

template <class T>
void StreamedParameters<T>::gather(int layer, std::span<T> whole) {
  auto const parts = map_.slices(layer, sizeof(T));
  auto const own =
      static_cast<std::size_t>(parts[static_cast<std::size_t>(comm_.rank())].offset) / sizeof(T);
  if (!direct_) {
    Waiting const waiting{"the layer before to leave host memory"};
    stream_->synchronize();
  }
  auto const gathered = direct_ ? whole : staging_.as<T>().first(whole.size());
  home_->bring(layer, [&](std::int64_t offset, std::span<T const> part) {
    std::ranges::copy(part, gathered.begin() + static_cast<std::ptrdiff_t>(own) + offset);
  });
  comm_.all_gather(std::as_writable_bytes(gathered), parts);
  if (!direct_) {
    copy(whole, gathered);
  }
}

template <class T>
void StreamedParameters<T>::copy(std::span<T> target, std::span<T const> source) {
  if (direct_) {
    std::ranges::copy(source, target.begin());
  } else {
    stream_->copy(target.data(), source.data(), static_cast<Bytes>(source.size_bytes()),
                  device::Copy::host_to_device);
  }
}

template <class T>
std::span<T> StreamedParameters<T>::slot(SlotSchedule::Use const& use) const {
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

template class StreamedParameters<float>;
template class StreamedParameters<bfloat16>;
template class StreamedParameters<float16>;

}  // namespace offstage::parameters
