#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <span>
#include <utility>

#include "base/stopwatch.hpp"
#include "base/units.hpp"
#include "base/watch.hpp"
#include "device/device.hpp"

namespace offstage::state {

/// A point in a stream that could not be recorded. Waiting for it throws the stream's error.
class FailedPoint final : public device::Event {
 public:
  void set(std::exception_ptr error) noexcept { error_ = std::move(error); }
  void wait() const override { std::rethrow_exception(error_); }
  [[nodiscard]] std::chrono::steady_clock::time_point when() const override {
    std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

/// A point in a stream that another thread will record, behind a copy of activations.
/// Threads: the model's alone.
class LatePoint final : public device::Event {
 public:
  using Point = std::shared_ptr<device::Event>;
  /// Adds the time of waits until it is recorded to `waited`.
  LatePoint(std::shared_future<Point> known, std::shared_ptr<Seconds> waited)
      : known_{std::move(known)}, waited_{std::move(waited)} {}
  /// Waits until it is recorded. Errors: the one because of which it could not be recorded.
  [[nodiscard]] device::Event const& known() const {
    if (known_.wait_for(std::chrono::seconds{0}) != std::future_status::ready) {
      Waiting const waiting{"activations that are on their way"};
      Stopwatch const watch;
      known_.wait();
      *waited_ += watch.elapsed();
    }
    return *known_.get();
  }
  void wait() const override { known().wait(); }
  [[nodiscard]] std::chrono::steady_clock::time_point when() const override {
    return known().when();
  }

 private:
  std::shared_future<Point> known_;
  std::shared_ptr<Seconds> waited_;
};

/// Makes the stream wait, as stream.wait(point) does, which knows only points of its own backend.
/// The calling thread waits until a LatePoint is recorded.
/// Errors: at once, those of a FailedPoint, and of a LatePoint that could not be recorded.
inline void queue_behind(device::Stream& stream, device::Event const& point) {
  if (auto const* const late = dynamic_cast<LatePoint const*>(&point)) {
    stream.wait(late->known());
    return;
  }
  if (dynamic_cast<FailedPoint const*>(&point) != nullptr) {
    point.wait();
  }
  stream.wait(point);
}

/// Gives the model a layer's parameters just before use. T: float, bfloat16, float16,
/// or double in tests.
template <class T>
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  /// Returns the padded layer in device memory, for work that the model's stream is given until
  /// release(layer). At most two layers are held at a time (the tied head needs the embedding
  /// beside the last layer).
  /// Collective: all ranks acquire the same layers in the same order.
  [[nodiscard]] virtual std::span<T const> acquire(int layer) = 0;
  /// Releases a layer without waiting. `done`: a point in the model's stream behind all work that
  /// used the layer. The layer's memory stays as it is until then. It may be a FailedPoint, to be
  /// given to queue_behind. Null: nothing uses the layer any more.
  virtual void release(int layer, std::shared_ptr<device::Event> done) = 0;
};

/// Holds a layer's parameters for a scope, for work that is enqueued on `stream`, the model's.
template <class T>
class HeldLayer {
 public:
  HeldLayer(ParameterSource<T>& source, int layer, device::Stream& stream)
      : source_{source}, layer_{layer}, stream_{stream}, parameters_{source.acquire(layer)} {}
  ~HeldLayer() {
    std::shared_ptr<device::Event> done;
    try {
      done = stream_.record();
    } catch (...) {  // a thread that waits for the layer's memory gets the error
      failed_->set(std::current_exception());
      done = failed_;
    }
    source_.release(layer_, std::move(done));
  }
  HeldLayer(HeldLayer const&) = delete;
  HeldLayer& operator=(HeldLayer const&) = delete;

  /// One tensor of the layer: `elements` elements from `offset` on.
  [[nodiscard]] std::span<T const> tensor(std::int64_t offset, std::int64_t elements) const {
    return parameters_.subspan(static_cast<std::size_t>(offset),
                               static_cast<std::size_t>(elements));
  }

 private:
  ParameterSource<T>& source_;
  int layer_;
  device::Stream& stream_;
  /// Made before it is needed, for the destructor must not run out of memory.
  std::shared_ptr<FailedPoint> failed_ = std::make_shared<FailedPoint>();
  std::span<T const> parameters_;
};

/// Takes a layer's gradient of one micro-batch from the model.
template <class T>
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// Takes `gradient`, the padded layer as the model's stream leaves it in device memory, with
  /// zeros as padding. It is empty on a rank that has no micro-batch in this round. The memory
  /// stays as it is until the next add has returned, and then until the point which that add
  /// returned has come (null: it has). So two buffers in turn are enough. The add of layer 0, the
  /// last of a micro-batch, returns when no gradient's memory is used any more.
  /// Collective: all ranks add the same layers in the same order.
  virtual std::shared_ptr<device::Event> add(int layer, std::span<T const> gradient) = 0;
};

/// A part of a block's activations that leaves the device. Parts leave in their order.
struct LeavingPart {
  int block{};
  int part{};
  Bytes bytes{};
};

/// Traffic of an ActivationStore.
struct ActivationTraffic {
  Bytes out{};       ///< bytes that left the device
  Bytes back{};      ///< bytes that came back to the device
  Seconds waited{};  ///< time for which the model's thread waited until a copy could be queued
};

/// Keeps parts of activations elsewhere, from a micro-batch's forward to its backward. A vertical
/// schedule, whose parts are tensors of all of a step's micro-batches, opens it once a step, and
/// may put a part again once it was taken.
/// Threads: the model's alone.
class ActivationStore {
 public:
  virtual ~ActivationStore() = default;
  /// Begins a micro-batch's forward. Parts that the one before has put are not taken any more.
  virtual void open() = 0;
  /// Puts a part. `memory` is the part as the model's stream leaves it at the point `made`. It
  /// stays as it is until the point that is returned.
  [[nodiscard]] virtual std::shared_ptr<device::Event> put(
      int block, int part, std::span<std::byte const> memory,
      std::shared_ptr<device::Event> const& made) = 0;
  /// Brings the part that was put last to `memory`, which nobody uses from the point `freed` on.
  /// The part is there at the point that is returned. Parts are taken once, in the opposite order
  /// of blocks, except in a vertical schedule.
  [[nodiscard]] virtual std::shared_ptr<device::Event> take(
      int block, int part, std::span<std::byte> memory,
      std::shared_ptr<device::Event> const& freed) = 0;
  /// Traffic since the start.
  [[nodiscard]] virtual ActivationTraffic traffic() const = 0;
};

}  // namespace offstage::state
