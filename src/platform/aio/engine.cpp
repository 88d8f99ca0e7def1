#include "platform/aio/engine.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/pauses.hpp"
#include "base/watch.hpp"
#include "platform/aio/kernel.hpp"

namespace offstage::aio {
namespace {

// How often one request is tried again, a millisecond apart, while the kernel says EAGAIN.
constexpr int most_tries = 10000;

bool aligned(Bytes value) {
  return value % direct_alignment == 0;
}

}  // namespace

/// Requests in flight are told apart by a tag, the index of their Transfer in `slots_`.
class Engine::Implementation {
 public:
  Implementation(EngineSettings settings, std::shared_ptr<Kernel> kernel)
      : settings_{settings}, kernel_{std::move(kernel)} {
    require(kernel_ != nullptr, "Engine: no kernel");
    require(settings.queue_depth > 0, "Engine: queue depth must be above 0");
    require(settings.request_bytes > 0 && aligned(settings.request_bytes),
            "Engine: request size must be a multiple of the alignment");
    slots_.resize(static_cast<std::size_t>(settings.queue_depth));
    completions_.resize(slots_.size());
    set_up();
  }
  ~Implementation() { tear_down(); }
  Implementation(Implementation const&) = delete;
  Implementation& operator=(Implementation const&) = delete;

  void move(Direction direction, File const& file, std::byte* memory, Bytes length, Bytes offset,
            OnLast const& on_last);

 private:
  void try_to_move(Direction direction, File const& file, std::byte* memory, Bytes length,
                   Bytes offset, OnLast const& on_last);
  struct Slot {
    Transfer rest;  ///< what is still to move
    int tries{};
  };

  void set_up();
  void tear_down() noexcept;
  void start(Slot& slot);
  int wait_for_completions();
  void reap();
  void finish(Slot& slot, Bytes result);
  template <class Cause>
  void fail(Transfer const& transfer, int error_number, Cause const& cause) noexcept;
  void fail(Transfer const& transfer, int error_number, char const* before = "") noexcept;

  EngineSettings settings_;
  std::shared_ptr<Kernel> kernel_;
  Kernel::Context context_{};
  bool open_ = false;
  bool patient_ = true;  ///< false from pauses in vain to the next transfer that succeeds
  std::vector<Slot> slots_;
  std::vector<Completion> completions_;
  // Of the call under way:
  File const* file_{};
  Direction direction_{};
  Bytes offset_{};
  std::vector<int> free_;
  int in_flight_ = 0;
  bool failed_ = false;
  std::string error_;     ///< the first one; empty if there was no memory for it
  int error_number_ = 0;  ///< its errno; 0 if it has none
};

void Engine::Implementation::set_up() {
  int status = kernel_->setup(settings_.queue_depth, context_);
  bool const refused = status == -EPERM || status == -ENOSYS;
  if (status == -EAGAIN && settings_.must_have_requests) {
    throw IoError{
        "cannot set up asynchronous I/O: the system's limit is reached; raise fs.aio-max-nr",
        -status};
  }
  if (refused || status == -EAGAIN) {
    static std::once_flag told;
    std::call_once(told, [&] {
      log::warning("io_setup: {}: {}; each thread moves one request at a time, which is slower: {}",
                   std::generic_category().message(-status),
                   refused
                       ? "asynchronous I/O is refused here, as the sandbox of a container may do"
                       : "the system's limit of asynchronous I/O requests is reached",
                   refused ? "allow it (seccomp)" : "raise fs.aio-max-nr");
    });
    kernel_ = synchronous_kernel();
    status = kernel_->setup(settings_.queue_depth, context_);
  }
  if (status < 0) {
    throw IoError{"cannot set up asynchronous I/O: " + std::generic_category().message(-status),
                  -status};
  }
  open_ = true;
}

void Engine::Implementation::tear_down() noexcept {
  if (open_) {
    kernel_->destroy(context_);
  }
  open_ = false;
  in_flight_ = 0;
}

// Requests are in flight: where memory has ended, too, they have to come to their end before
// anything is thrown.
template <class Cause>
void Engine::Implementation::fail(Transfer const& transfer, int error_number,
                                  Cause const& cause) noexcept {
  if (std::exchange(failed_, true)) {
    return;
  }
  error_number_ = error_number;
  try {
    error_ = std::string{transfer.direction == Direction::read ? "cannot read " : "cannot write "} +
             std::to_string(transfer.length) + " bytes at offset " +
             std::to_string(transfer.offset) + " of " + file_->path() + ": " + cause();
  } catch (std::bad_alloc const&) {
    error_.clear();
  }
}

void Engine::Implementation::fail(Transfer const& transfer, int error_number,
                                  char const* before) noexcept {
  fail(transfer, error_number,
       [&] { return before + std::generic_category().message(error_number); });
}

void Engine::Implementation::start(Slot& slot) {
  for (;;) {
    int const status = kernel_->submit(context_, slot.rest);
    if (status == 0) {
      ++in_flight_;
      return;
    }
    bool const again = status == -EAGAIN || status == -EINTR;
    if (!again || ++slot.tries > most_tries) {
      fail(slot.rest, -status);
      free_.push_back(slot.rest.tag);
      return;
    }
    if (status == -EAGAIN) {
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
  }
}

/// Each return is progress.
int Engine::Implementation::wait_for_completions() {
  bool const reads = direction_ == Direction::read;
  Waiting const waiting{reads ? "a read from storage, offset" : "a write to storage, offset",
                        offset_};
  return kernel_->get_events(context_, completions_);
}

void Engine::Implementation::reap() {
  int const count = wait_for_completions();
  if (count == -EINTR) {
    return;
  }
  if (count < 0) {
    // The requests in flight cannot be asked for any more; ending the context waits for them.
    fail(slots_.front().rest, -count, "completions are lost: ");
    tear_down();
    return;
  }
  for (int i = 0; i < count; ++i) {
    Completion const& completion = completions_[static_cast<std::size_t>(i)];
    --in_flight_;
    finish(slots_[static_cast<std::size_t>(completion.tag)], completion.result);
  }
}

void Engine::Implementation::finish(Slot& slot, Bytes result) {
  Transfer& rest = slot.rest;
  bool const again = result == -EAGAIN || result == -EINTR;
  if (again && ++slot.tries <= most_tries && !failed_) {
    if (result == -EAGAIN) {
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    start(slot);
    return;
  }
  if (result < 0) {
    fail(rest, static_cast<int>(-result));
  }
  // What follows a short transfer of a direct file has to begin on the alignment again.
  Bytes moved = std::max<Bytes>(result, 0);
  if (file_->direct() && moved < rest.length) {
    moved -= moved % direct_alignment;
  }
  // Less than an aligned block: nothing was won, but that may pass.
  bool const stuck = moved == 0 && (result == 0 || ++slot.tries > most_tries);
  if (result >= 0 && stuck) {
    fail(rest, 0, [&] {
      return "only " + std::to_string(result) + " bytes moved" +
             (rest.direction == Direction::read ? " (end of file?)" : "");
    });
  }
  rest.memory += moved;
  rest.offset += moved;
  rest.length -= moved;
  if (rest.length == 0 || failed_) {
    free_.push_back(rest.tag);
  } else {
    start(slot);
  }
}

void Engine::Implementation::move(Direction direction, File const& file, std::byte* memory,
                                  Bytes length, Bytes offset, OnLast const& on_last) {
  bool told = false;
  OnLast const once = !on_last ? OnLast{} : [&] {
    if (!std::exchange(told, true)) {
      on_last();
    }
  };
  for (auto pause = pauses_between_tries.begin();;) {
    bool const was_direct = file.direct();
    try {
      try_to_move(direction, file, memory, length, offset, once);
      patient_ = true;
      return;
    } catch (IoError const& error) {
      // O_DIRECT was taken, but with another alignment: Lustre wants that of a page of memory.
      if (error.error_number() == EINVAL && was_direct && file.leave_direct()) {
        log::warning("{}; trying again through the page cache", error.what());
        continue;
      }
      if (!ends_by_itself(error.error_number())) {
        throw;
      }
      patient_ = patient_ && pause != pauses_between_tries.end();
      if (!patient_) {
        throw;
      }
      log::warning("{}; trying again", error.what());
      kernel_->pause(*pause++);
    }
  }
}

void Engine::Implementation::try_to_move(Direction direction, File const& file, std::byte* memory,
                                         Bytes length, Bytes offset, OnLast const& on_last) {
  require(file.descriptor() >= 0, "Engine: the file is not open");
  require(offset >= 0, "Engine: negative offset");
  require(!file.direct() || (aligned(length) && aligned(offset) &&
                             reinterpret_cast<std::uintptr_t>(memory) % direct_alignment == 0),
          "Engine: memory, offset and length of a direct transfer must be aligned");
  if (!open_) {
    set_up();
  }
  file_ = &file;
  direction_ = direction;
  offset_ = offset;
  failed_ = false;
  error_number_ = 0;
  free_.clear();
  for (int tag = settings_.queue_depth - 1; tag >= 0; --tag) {
    free_.push_back(tag);
  }

  Bytes begun = 0;
  int requests = 0;
  bool tells = static_cast<bool>(on_last);
  int const few = std::max(1, settings_.queue_depth / 2);
  while (in_flight_ > 0 || (begun < length && !failed_)) {
    while (begun < length && !free_.empty() && !failed_) {
      Bytes const size = std::min(settings_.request_bytes, length - begun);
      int const tag = free_.back();
      free_.pop_back();
      Slot& slot = slots_[static_cast<std::size_t>(tag)];
      slot = {{direction, file.descriptor(), memory + begun, size, offset + begun, tag}, 0};
      begun += size;
      ++requests;
      start(slot);
    }
    bool const one_has_ended = in_flight_ < requests;
    if (tells && begun == length && one_has_ended && in_flight_ <= few && !failed_) {
      tells = false;
      on_last();
    }
    if (in_flight_ > 0) {
      reap();
    }
  }
  if (failed_) {
    throw IoError{error_.empty() ? "cannot read or write " + file.path() : error_, error_number_};
  }
}

Engine::Engine(EngineSettings settings, std::shared_ptr<Kernel> kernel)
    : implementation_{std::make_unique<Implementation>(settings, std::move(kernel))} {}

Engine::~Engine() = default;

void Engine::read(File const& file, std::span<std::byte> memory, Bytes offset,
                  OnLast const& on_last) {
  implementation_->move(Direction::read, file, memory.data(), static_cast<Bytes>(memory.size()),
                        offset, on_last);
}

void Engine::write(File const& file, std::span<std::byte const> memory, Bytes offset,
                   OnLast const& on_last) {
  implementation_->move(Direction::write, file, const_cast<std::byte*>(memory.data()),
                        static_cast<Bytes>(memory.size()), offset, on_last);
}

}  // namespace offstage::aio
