#include "device/host_stream.hpp"

#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/team.hpp"
#include "base/thread.hpp"
#include "base/watch.hpp"

namespace offstage::device {

void Engine::run(double units, std::function<void()> const& work) {
  {
    std::unique_lock lock{mutex_};
    std::int64_t const ticket = next_ticket_++;
    changed_.wait(lock, [&] { return served_ == ticket; });
  }
  struct Turn {
    Engine& engine;
    explicit Turn(Engine& of) : engine{of} {}
    Turn(Turn const&) = delete;
    Turn& operator=(Turn const&) = delete;
    ~Turn() {
      {
        std::lock_guard const lock{engine.mutex_};
        ++engine.served_;
      }
      engine.changed_.notify_all();
    }
  } const turn{*this};
  pacer_.run(units, work);
}

namespace {

/// Whether the work before a point of a stream is done, and how it ended.
class Completion {
 public:
  void set(std::exception_ptr error) {
    {
      std::lock_guard const lock{mutex_};
      done_ = true;
      when_ = std::chrono::steady_clock::now();
      error_ = std::move(error);
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock{mutex_};
    if (!done_) {
      Waiting const waiting{"a device stream"};
      changed_.wait(lock, [this] { return done_; });
    }
    if (error_) {
      std::rethrow_exception(error_);
    }
  }
  std::chrono::steady_clock::time_point when() {
    wait();
    return when_;
  }

 private:
  std::mutex mutex_;  ///< guards all below; once done_ they stay as they are
  std::condition_variable changed_;
  bool done_ = false;
  std::chrono::steady_clock::time_point when_;
  std::exception_ptr error_;
};

class HostEvent final : public Event {
 public:
  explicit HostEvent(std::shared_ptr<Completion> completion) : completion_{std::move(completion)} {}
  void wait() const override { completion_->wait(); }
  [[nodiscard]] std::chrono::steady_clock::time_point when() const override {
    return completion_->when();
  }
  /// Lives on when the event does not.
  [[nodiscard]] std::shared_ptr<Completion> const& completion() const noexcept {
    return completion_;
  }

 private:
  std::shared_ptr<Completion> completion_;
};

void copy_now(HostEngines& engines, void* target, void const* source, Bytes size, Copy direction) {
  auto const move = [=] { std::memcpy(target, source, static_cast<std::size_t>(size)); };
  switch (direction) {
    case Copy::host_to_device: {
      Waiting const busy{"a copy to the device"};
      engines.to_device.run(static_cast<double>(size), move);
      break;
    }
    case Copy::device_to_host: {
      Waiting const busy{"a copy from the device"};
      engines.to_host.run(static_cast<double>(size), move);
      break;
    }
    case Copy::device_to_device:
      move();
      break;
  }
}

void zero_now(void* target, Bytes size) {
  if (size > 0) {
    std::memset(target, 0, static_cast<std::size_t>(size));
  }
}

[[noreturn]] void throw_no_blas() {
  throw PreconditionError{"Stream::blas: the host backend multiplies without"};
}

void run_now(HostEngines& engines, std::function<void()> const& kernel, Work work) {
  Waiting const busy{"a kernel"};
  if (work.updates > 0) {
    engines.update.run(static_cast<double>(work.updates), kernel);
  } else if (work.flops > 0.0) {
    engines.products.run(work.flops, kernel);
  } else if (engines.products.is_paced()) {  // the rate of products has the kernels between them
    engines.products.run(0.0, kernel);
  } else {
    kernel();
  }
}

/// Nothing is ever queued, so every event has happened, and errors surface where work is given.
class InlineStream final : public Stream {
 public:
  explicit InlineStream(HostEngines& engines) : engines_{engines} {}

  [[nodiscard]] Kind kind() const noexcept override { return Kind::host; }
  void copy(void* target, void const* source, Bytes size, Copy direction) override {
    if (size > 0) {
      copy_now(engines_, target, source, size, direction);
    }
  }
  void zero(void* target, Bytes size) override { zero_now(target, size); }
  void enqueue(std::function<void()> kernel, Work work) override {
    run_now(engines_, kernel, work);
  }
  [[nodiscard]] void* native() const noexcept override { return nullptr; }
  [[nodiscard]] std::span<std::byte> scratch() const noexcept override { return {}; }
  [[nodiscard]] cuda::BlasLt& blas() override { throw_no_blas(); }
  [[nodiscard]] std::shared_ptr<Event> record() override {
    auto done = std::make_shared<Completion>();
    done->set({});
    return std::make_shared<HostEvent>(std::move(done));
  }
  void wait(Event const& event) override { event.wait(); }
  void synchronize() override {}

 private:
  HostEngines& engines_;
};

/// A thread that does what is queued, in order.
class QueuedStream final : public Stream {
 public:
  QueuedStream(HostEngines& engines, std::string const& name, int team)
      : engines_{engines}, thread_{name, [this, team] { serve(team); }} {}
  ~QueuedStream() override {
    {
      std::lock_guard const lock{mutex_};
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  QueuedStream(QueuedStream const&) = delete;
  QueuedStream& operator=(QueuedStream const&) = delete;

  [[nodiscard]] Kind kind() const noexcept override { return Kind::host; }
  void copy(void* target, void const* source, Bytes size, Copy direction) override {
    if (size > 0) {
      push(
          {.work = [=, &engines = engines_] { copy_now(engines, target, source, size, direction); },
           .reached = {}});
    }
  }
  void zero(void* target, Bytes size) override {
    push({.work = [=] { zero_now(target, size); }, .reached = {}});
  }
  void enqueue(std::function<void()> kernel, Work work) override {
    push({.work = [kernel = std::move(kernel), work,
                   &engines = engines_] { run_now(engines, kernel, work); },
          .reached = {}});
  }
  [[nodiscard]] void* native() const noexcept override { return nullptr; }
  [[nodiscard]] std::span<std::byte> scratch() const noexcept override { return {}; }
  [[nodiscard]] cuda::BlasLt& blas() override { throw_no_blas(); }
  [[nodiscard]] std::shared_ptr<Event> record() override {
    auto reached = std::make_shared<Completion>();
    push({.work = {}, .reached = reached});
    return std::make_shared<HostEvent>(std::move(reached));
  }
  void wait(Event const& event) override {
    auto const* const point = dynamic_cast<HostEvent const*>(&event);
    require(point != nullptr, "Stream::wait: the event is another device's");
    // The other stream's error becomes this one's: what is behind would use what was never made.
    push({.work = [completion = point->completion()] { completion->wait(); }, .reached = {}});
  }
  void synchronize() override { record()->wait(); }

 private:
  /// Work, or a point in it.
  struct Item {
    std::function<void()> work;
    std::shared_ptr<Completion> reached;  ///< null: it is work
  };

  void push(Item item) {
    {
      std::lock_guard const lock{mutex_};
      items_.push_back(std::move(item));
    }
    changed_.notify_one();
  }
  /// Empty when all is done and the stream ends.
  [[nodiscard]] std::optional<Item> next() {
    std::unique_lock lock{mutex_};
    if (items_.empty() && !ending_) {
      Waiting const idle{"work for a device stream"};
      changed_.wait(lock, [this] { return !items_.empty() || ending_; });
    }
    if (items_.empty()) {
      return {};
    }
    Item item = std::move(items_.front());
    items_.pop_front();
    return item;
  }
  void serve(int team);

  HostEngines& engines_;
  std::mutex mutex_;  ///< guards items_ and ending_
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool ending_ = false;
  NamedThread thread_;  // last: it uses all of the above
};

void QueuedStream::serve(int team) {
  std::exception_ptr error;
  try {
    set_team_size(team);
  } catch (...) {
    error = std::current_exception();
  }
  while (auto const item = next()) {
    if (item->reached != nullptr) {
      item->reached->set(error);
    } else if (!error) {
      try {
        item->work();
      } catch (...) {
        error = std::current_exception();
      }
    }
  }
}

}  // namespace

std::unique_ptr<Stream> make_queued_stream(HostEngines& engines, std::string const& name,
                                           int team) {
  return std::make_unique<QueuedStream>(engines, name, team);
}

std::unique_ptr<Stream> make_inline_stream(HostEngines& engines) {
  return std::make_unique<InlineStream>(engines);
}

}  // namespace offstage::device
