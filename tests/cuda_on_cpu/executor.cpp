#include "cuda_on_cpu/executor.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the callee's registers and the stack pointer, goes on with those of another stack.
asm(R"(
.text
.type offstage_switch_stack, @function
offstage_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size offstage_switch_stack, .-offstage_switch_stack
)");
extern "C" void offstage_switch_stack(void** saved, void* next);

namespace offstage::cuda_on_cpu {
namespace {

[[noreturn]] void fail(char const* what) {
  std::fprintf(stderr, "cuda_on_cpu: %s\n", what);
  std::abort();
}

constexpr std::size_t stack_bytes = 256 * 1024;
constexpr std::size_t most_threads = 1024;  // of a block, as on a GPU

enum class State { ready, at_block_barrier, in_exchange, done };

struct CopyLater {
  void* to;
  void const* from;
  std::size_t bytes;
};

struct Fiber {
  void* stack_pointer{};
  std::byte* stack{};
  State state = State::done;
  Here here{};
  std::deque<std::vector<CopyLater>> copies;  ///< groups; the last is still open
};

struct Warp {
  std::array<Brought, 2> brought;  ///< of this exchange and of the one before
  unsigned lanes{};
  unsigned arrived{};
  unsigned round{};
};

/// Of one OS thread.
class Executor {
 public:
  Executor() {
    // Pages that no fiber has used take no memory.
    void* const memory = mmap(nullptr, most_threads * stack_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      fail("no memory for the stacks of fibers");
    }
    stacks_ = static_cast<std::byte*>(memory);
  }
  ~Executor() { munmap(stacks_, most_threads * stack_bytes); }
  Executor(Executor const&) = delete;
  Executor& operator=(Executor const&) = delete;

  void run_block(uint3 block, dim3 grid, dim3 threads, std::size_t shared_bytes,
                 std::function<void()> const& kernel);

  [[nodiscard]] Fiber& current() { return *current_; }
  [[nodiscard]] std::byte* shared_memory() { return shared_.data(); }
  void sync_block();
  [[nodiscard]] Brought const& exchange(void const* mine, std::size_t bytes);

 private:
  static void enter();
  void begin(Fiber& fiber, std::size_t index);
  void resume(Fiber& fiber);
  /// Back to run_warp, until the fiber is ready and its turn comes.
  void leave();
  [[nodiscard]] bool end_barrier();
  /// Lets the lanes of a warp go on, in another order after each exchange, until none is ready.
  void run_warp(std::size_t number);

  std::byte* stacks_{};
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<std::byte> shared_;
  std::vector<std::size_t> order_;  ///< in which the warps go on
  std::function<void()> const* kernel_{};
  Fiber* current_{};
  void* home_{};
  void const* home_bottom_{};
  std::size_t home_size_{};
  std::minstd_rand random_{1};
};

/// The executor that runs a kernel on this thread.
constinit thread_local Executor* running{};

Executor& executor() {
  if (running == nullptr) {
    fail("a kernel's function was called outside a kernel");
  }
  return *running;
}

void Executor::enter() {
  Executor& self = executor();
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &self.home_bottom_, &self.home_size_);
#endif
  (*self.kernel_)();
  self.current_->state = State::done;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(nullptr, self.home_bottom_, self.home_size_);
#endif
  void* unused{};
  offstage_switch_stack(&unused, self.home_);
  fail("a thread that had ended went on");
}

void Executor::begin(Fiber& fiber, std::size_t index) {
  fiber.stack = stacks_ + index * stack_bytes;
#ifdef __SANITIZE_ADDRESS__
  // enter() of the last one here never returned, and left its marks around its variables.
  ASAN_UNPOISON_MEMORY_REGION(fiber.stack, stack_bytes);
#endif
  // Not all at the same offset: they would share few lines of the cache.
  auto* top = reinterpret_cast<std::uintptr_t*>(fiber.stack + stack_bytes - index % 61 * 192);
  *--top = 0;  // where enter() would return to; leaves the stack aligned as after a call
  *--top = reinterpret_cast<std::uintptr_t>(&Executor::enter);
  for (int saved = 0; saved < 6; ++saved) {
    *--top = 0;
  }
  fiber.stack_pointer = top;
  fiber.state = State::ready;
  if (fiber.copies.size() != 1 || !fiber.copies.front().empty()) {
    fiber.copies.assign(1, {});
  }
}

void Executor::resume(Fiber& fiber) {
  current_ = &fiber;
#ifdef __SANITIZE_ADDRESS__
  void* fake{};
  __sanitizer_start_switch_fiber(&fake, fiber.stack, stack_bytes);
#endif
  offstage_switch_stack(&home_, fiber.stack_pointer);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  current_ = nullptr;
}

void Executor::leave() {
  Fiber& self = *current_;
#ifdef __SANITIZE_ADDRESS__
  void* fake{};
  __sanitizer_start_switch_fiber(&fake, home_bottom_, home_size_);
#endif
  offstage_switch_stack(&self.stack_pointer, home_);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake, &home_bottom_, &home_size_);
#endif
}

bool Executor::end_barrier() {
  bool any = false;
  for (Fiber const& fiber : fibers_) {
    any = any || fiber.state == State::at_block_barrier;
  }
  for (Fiber& fiber : fibers_) {
    if (any && fiber.state != State::at_block_barrier) {
      fail(fiber.state == State::done
               ? "__syncthreads(): a thread of the block has ended without it"
               : "__syncthreads(): a thread of the block waits for its warp instead");
    }
    fiber.state = any ? State::ready : fiber.state;
  }
  return any;
}

void Executor::run_warp(std::size_t number) {
  std::size_t const first = number * warp_lanes;
  bool any = true;
  while (any) {
    any = false;
    // An odd stride comes to every lane.
    auto const drawn = static_cast<unsigned>(random_() >> 8);
    unsigned const stride = drawn / warp_lanes * 2 + 1;
    for (unsigned turn = 0; turn < warp_lanes; ++turn) {
      unsigned const lane = (drawn + turn * stride) % warp_lanes;
      if (lane < warps_[number].lanes && fibers_[first + lane].state == State::ready) {
        resume(fibers_[first + lane]);
        any = true;
      }
    }
  }
}

void Executor::run_block(uint3 block, dim3 grid, dim3 threads, std::size_t shared_bytes,
                         std::function<void()> const& kernel) {
  std::size_t const count = std::size_t{threads.x} * threads.y * threads.z;
  if (count == 0 || count > most_threads) {
    fail("a block has 1 to 1024 threads");
  }
  kernel_ = &kernel;
  shared_.assign(shared_bytes + 128, std::byte{0xFF});
  fibers_.resize(count);
  warps_.resize((count + warp_lanes - 1) / warp_lanes);
  for (std::size_t i = 0; i < warps_.size(); ++i) {
    warps_[i].lanes =
        static_cast<unsigned>(std::min<std::size_t>(warp_lanes, count - i * warp_lanes));
    warps_[i].arrived = 0;
  }
  for (std::size_t i = 0; i < count; ++i) {
    begin(fibers_[i], i);
    auto const index = static_cast<unsigned>(i);
    fibers_[i].here = {.thread = {index % threads.x, index / threads.x % threads.y,
                                  index / (threads.x * threads.y)},
                       .block = block,
                       .block_size = threads,
                       .grid_size = grid,
                       .lane = index % warp_lanes};
  }
  order_.resize(warps_.size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  do {
    std::shuffle(order_.begin(), order_.end(), random_);
    for (std::size_t const warp : order_) {
      run_warp(warp);
    }
  } while (end_barrier());
  for (Fiber const& fiber : fibers_) {
    if (fiber.state != State::done) {
      fail("a lane waits for the others of its warp, which have ended");
    }
  }
}

void Executor::sync_block() {
  current().state = State::at_block_barrier;
  leave();
}

Brought const& Executor::exchange(void const* mine, std::size_t bytes) {
  Fiber& self = current();
  auto const index = static_cast<std::size_t>(&self - fibers_.data());
  Warp& warp = warps_[index / warp_lanes];
  Brought& brought = warp.brought[warp.round % 2];
  std::memcpy(brought[self.here.lane].bytes.data(), mine, bytes);
  if (++warp.arrived < warp.lanes) {
    self.state = State::in_exchange;
    leave();
    return brought;
  }
  warp.arrived = 0;
  ++warp.round;
  auto const first = index / warp_lanes * warp_lanes;
  for (std::size_t i = first; i < first + warp.lanes; ++i) {
    fibers_[i].state = fibers_[i].state == State::in_exchange ? State::ready : fibers_[i].state;
  }
  return brought;
}

}  // namespace

Here const& here() {
  return executor().current().here;
}

void run_grid(dim3 blocks, dim3 threads, std::size_t shared_bytes,
              std::function<void()> const& kernel) {
  static thread_local Executor of_this_thread;
  running = &of_this_thread;
  for (unsigned z = 0; z < blocks.z; ++z) {
    for (unsigned y = 0; y < blocks.y; ++y) {
      for (unsigned x = 0; x < blocks.x; ++x) {
        of_this_thread.run_block({x, y, z}, blocks, threads, shared_bytes, kernel);
      }
    }
  }
  running = nullptr;
}

std::byte* shared_memory() {
  auto const address = reinterpret_cast<std::uintptr_t>(executor().shared_memory());
  return executor().shared_memory() + (128 - address % 128) % 128;
}

void sync_block() {
  executor().sync_block();
}

void sync_warp() {
  static_cast<void>(exchange(0));
}

Brought const& exchange(void const* mine, std::size_t bytes) {
  return executor().exchange(mine, bytes);
}

void copy_later(void* to, void const* from, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(to) % bytes != 0 ||
      reinterpret_cast<std::uintptr_t>(from) % bytes != 0) {
    fail("copy_async: an address is no multiple of what is copied");
  }
  executor().current().copies.back().push_back({to, from, bytes});
}

void end_copies() {
  executor().current().copies.emplace_back();
}

void await_copies(int pending_groups) {
  auto& copies = executor().current().copies;
  while (copies.size() > static_cast<std::size_t>(pending_groups) + 1) {
    for (CopyLater const& copy : copies.front()) {
      if (copy.from != nullptr) {
        std::memcpy(copy.to, copy.from, copy.bytes);
      } else {
        std::memset(copy.to, 0, copy.bytes);
      }
    }
    copies.pop_front();
  }
}

}  // namespace offstage::cuda_on_cpu
