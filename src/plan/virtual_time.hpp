#pragma once

#include <algorithm>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace offstage::plan {

/// A piece of straight-line work under virtual time. It begins when another task awaits it, or when
/// VirtualTime::start is given it. It ends where its function does.
class [[nodiscard]] Task {
 public:
  struct promise_type {
    std::coroutine_handle<> then = std::noop_coroutine();  ///< task that awaits it
    std::exception_ptr error;
    /// Gets `place` at the end; null: another task awaits this one.
    std::vector<std::size_t>* ended{};
    std::size_t place{};

    Task get_return_object() {
      return Task{std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    auto final_suspend() noexcept {
      struct Continue {
        bool await_ready() noexcept { return false; }
        std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> task) noexcept {
          promise_type& promise = task.promise();
          if (promise.ended != nullptr) {
            promise.ended->push_back(promise.place);
          }
          return promise.then;
        }
        void await_resume() noexcept {}
      };
      return Continue{};
    }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { error = std::current_exception(); }
  };

  Task(Task&& other) noexcept : handle_{std::exchange(other.handle_, nullptr)} {}
  Task& operator=(Task&&) = delete;
  Task(Task const&) = delete;
  Task& operator=(Task const&) = delete;
  ~Task() {
    if (handle_) {
      handle_.destroy();
    }
  }

  [[nodiscard]] bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) noexcept {
    handle_.promise().then = awaiting;
    return handle_;
  }
  void await_resume() const { rethrow(); }

  [[nodiscard]] std::coroutine_handle<> handle() const { return handle_; }
  /// For a task that nobody awaits: at its end the number `place` is appended to `ended`.
  void tell_end(std::vector<std::size_t>& ended, std::size_t place) const {
    handle_.promise().ended = &ended;
    handle_.promise().place = place;
  }
  void rethrow() const {
    if (handle_.promise().error) {
      std::rethrow_exception(handle_.promise().error);
    }
  }

 private:
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_{handle} {}
  std::coroutine_handle<promise_type> handle_;
};

/// Seconds that pass from event to event. Events of the same moment happen in the order in which
/// they were asked for.
/// Memory: tasks that have ended are freed.
class VirtualTime {
 public:
  [[nodiscard]] double now() const noexcept { return now_; }
  /// Starts a task at the present moment, beside the caller.
  void start(Task task) {
    resume_at(now_, task.handle());
    std::size_t place = tasks_.size();
    if (free_.empty()) {
      tasks_.emplace_back();
    } else {
      place = free_.back();
      free_.pop_back();
    }
    task.tell_end(ended_, place);
    tasks_[place].emplace(std::move(task));
  }
  void resume_at(double when, std::coroutine_handle<> task) {
    events_.push({when, ++count_, task});
  }
  /// Runs until no event is left. Errors: that of a task; PreconditionError: a task waits for ever.
  void run() {
    run_while([] { return true; });
    require(running() == 0, "VirtualTime: a task waits for ever");
  }
  /// The same, but returns once condition(), which is called before each event, is false.
  /// Errors: that of a task.
  template <class Condition>
  void run_while(Condition condition) {
    while (!events_.empty() && condition()) {
      auto const event = events_.top();
      events_.pop();
      now_ = event.when;
      event.task.resume();
      for (std::size_t const place : ended_) {
        tasks_[place]->rethrow();
        tasks_[place].reset();
        free_.push_back(place);
      }
      ended_.clear();
    }
  }
  /// Number of tasks that were started and have not ended.
  [[nodiscard]] std::size_t running() const { return tasks_.size() - free_.size(); }

 private:
  struct Event {
    double when;
    std::uint64_t number;
    std::coroutine_handle<> task;
    friend bool operator<(Event const& a, Event const& b) {
      return std::pair{a.when, a.number} > std::pair{b.when, b.number};
    }
  };
  std::priority_queue<Event> events_;
  std::vector<std::optional<Task>> tasks_;
  std::vector<std::size_t> free_;   ///< free places in tasks_
  std::vector<std::size_t> ended_;  ///< places of tasks that the present event ended
  double now_ = 0.0;
  std::uint64_t count_ = 0;
};

/// A resource that does one thing at a time, in order of arrival.
class Server {
 public:
  explicit Server(VirtualTime& time) : time_{&time} {}

  /// Returns when the server has spent `seconds` on the caller.
  [[nodiscard]] auto serve(double seconds) {
    struct Awaiter {
      Server& server;
      double seconds;
      [[nodiscard]] bool await_ready() const { return seconds <= 0.0; }
      void await_suspend(std::coroutine_handle<> task) const {
        server.busy_until_ = server.begin() + seconds;
        server.busy_ += seconds;
        server.time_->resume_at(server.busy_until_, task);
      }
      void await_resume() const {}
    };
    return Awaiter{*this, seconds};
  }
  /// The time at which the next caller would be served.
  [[nodiscard]] double begin() const { return std::max(time_->now(), busy_until_); }
  /// Seconds for which it was in use so far.
  [[nodiscard]] double busy() const { return busy_ - (begin() - time_->now()); }

 private:
  VirtualTime* time_;
  double busy_until_ = 0.0;
  double busy_ = 0.0;
};

/// A number of equal tokens, each lent to one caller at a time, in order of arrival.
class Tokens {
 public:
  Tokens(VirtualTime& time, std::int64_t count) : time_{&time}, free_{count} {}

  /// Returns when the caller has a token.
  [[nodiscard]] auto take() {
    struct Awaiter {
      Tokens& tokens;
      [[nodiscard]] bool await_ready() const {
        bool const there = tokens.free_ > 0;
        tokens.free_ -= there ? 1 : 0;
        return there;
      }
      void await_suspend(std::coroutine_handle<> task) const { tokens.waiting_.push_back(task); }
      void await_resume() const {}
    };
    return Awaiter{*this};
  }
  void give() {
    if (waiting_.empty()) {
      ++free_;
      return;
    }
    time_->resume_at(time_->now(), waiting_.front());
    waiting_.pop_front();
  }

 private:
  VirtualTime* time_;
  std::int64_t free_;
  std::deque<std::coroutine_handle<>> waiting_;
};

/// An event that happens once.
class Point {
 public:
  explicit Point(VirtualTime& time) : time_{&time} {}

  void set() {
    happened_ = true;
    for (auto const task : std::exchange(waiting_, {})) {
      time_->resume_at(time_->now(), task);
    }
  }
  [[nodiscard]] bool happened() const { return happened_; }

  [[nodiscard]] auto operator co_await() {
    struct Awaiter {
      Point& point;
      [[nodiscard]] bool await_ready() const { return point.happened_; }
      void await_suspend(std::coroutine_handle<> task) const { point.waiting_.push_back(task); }
      void await_resume() const {}
    };
    return Awaiter{*this};
  }

 private:
  VirtualTime* time_;
  bool happened_ = false;
  std::vector<std::coroutine_handle<>> waiting_;
};

/// An event that happens again and again. A task that awaits it goes on at the next change.
class Change {
 public:
  explicit Change(VirtualTime& time) : time_{&time} {}

  void tell() {
    for (auto const task : std::exchange(waiting_, {})) {
      time_->resume_at(time_->now(), task);
    }
  }

  [[nodiscard]] auto operator co_await() {
    struct Awaiter {
      Change& change;
      [[nodiscard]] bool await_ready() const { return false; }
      void await_suspend(std::coroutine_handle<> task) const { change.waiting_.push_back(task); }
      void await_resume() const {}
    };
    return Awaiter{*this};
  }

 private:
  VirtualTime* time_;
  std::vector<std::coroutine_handle<>> waiting_;
};

}  // namespace offstage::plan
