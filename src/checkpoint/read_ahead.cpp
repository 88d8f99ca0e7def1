#include "checkpoint/read_ahead.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::checkpoint {

ReadAhead::ReadAhead(std::shared_ptr<aio::Kernel> const& kernel) {
  try {
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      engines_.at(i).emplace(aio::EngineSettings{}, kernel);
      threads_.at(i).emplace("restore", [this, i] { run(engines_.at(i)); });
    }
  } catch (...) {
    end();  // joins the thread that was started
    throw;
  }
}

ReadAhead::~ReadAhead() {
  drop();
  end();
}

void ReadAhead::end() noexcept {
  ended_ = true;
  {
    std::lock_guard const lock{mutex_};
    over_ = true;
  }
  asked_.notify_all();
}

ReadAhead::Part* ReadAhead::next() {
  auto const found = std::ranges::find(parts_, State::asked, &Part::state);
  return found == parts_.end() ? nullptr : &*found;
}

void ReadAhead::run(std::optional<aio::Engine>& engine) {
  std::unique_lock lock{mutex_};
  for (;;) {
    Part* part = nullptr;
    asked_.wait(lock, [&] { return (part = next()) != nullptr || over_; });
    if (part == nullptr) {
      lock.unlock();
      engine.reset();
      return;
    }
    part->state = State::read_now;
    lock.unlock();
    std::exception_ptr error;
    try {
      engine->read(*part->file, part->memory, part->offset);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    part->error = std::move(error);
    part->state = State::done;
    done_.notify_all();
  }
}

void ReadAhead::ask(std::shared_ptr<aio::File const> file, std::span<std::byte> memory,
                    Bytes offset) {
  require(!ended_, "ReadAhead: it has ended");
  {
    std::lock_guard const lock{mutex_};
    parts_.push_back({.file = std::move(file), .memory = memory, .offset = offset});
  }
  asked_.notify_one();
}

void ReadAhead::wait() {
  Waiting const waiting{"the thread that reads a checkpoint"};
  std::unique_lock lock{mutex_};
  require(!parts_.empty(), "ReadAhead: nothing was asked for");
  done_.wait(lock, [&] { return parts_.front().state == State::done; });
  Part const part = std::move(parts_.front());
  parts_.pop_front();
  lock.unlock();
  if (part.error) {
    std::rethrow_exception(part.error);
  }
}

void ReadAhead::drop() noexcept {
  Waiting const waiting{"the thread that reads a checkpoint, to stop"};
  std::unique_lock lock{mutex_};
  for (Part& part : parts_) {
    if (part.state == State::asked) {
      part.state = State::done;
    }
  }
  done_.wait(lock, [&] {
    return std::ranges::all_of(parts_, [](Part const& part) { return part.state == State::done; });
  });
  parts_.clear();
}

}  // namespace offstage::checkpoint
