#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <thread>

#include "base/units.hpp"

namespace offstage::aio {

enum class Direction { read, write };

/// One request, as the kernel sees it.
struct Transfer {
  Direction direction{};
  int descriptor{};
  std::byte* memory{};  ///< only read from when writing
  Bytes length{};
  Bytes offset{};
  int tag{};  ///< comes back in the completion
};

struct Completion {
  int tag{};
  Bytes result{};  ///< bytes moved, or an errno, negated
};

/// The calls of Linux asynchronous I/O that an Engine makes; a test replaces them to inject faults.
/// Threads: a context belongs to one thread at a time.
class Kernel {
 public:
  using Context = void*;

  virtual ~Kernel() = default;
  /// Makes a context for `depth` requests in flight. 0, or an errno, negated.
  virtual int setup(int depth, Context& context) = 0;
  /// Starts one request. 0, or an errno, negated: then nothing was started.
  virtual int submit(Context context, Transfer const& transfer) = 0;
  /// Blocks until a completion is there. How many were stored, or an errno, negated.
  virtual int get_events(Context context, std::span<Completion> completions) = 0;
  /// Waits for the requests in flight and ends the context.
  virtual void destroy(Context context) noexcept = 0;
  /// Sleeps before a transfer is tried again.
  virtual void pause(Seconds duration) { std::this_thread::sleep_for(duration); }
};

/// The real calls: io_setup, io_submit, io_getevents, io_destroy.
[[nodiscard]] std::shared_ptr<Kernel> libaio_kernel();

/// Does without them: submit moves all by pread or pwrite before it returns. For a system that
/// refuses io_setup, as the sandboxes of some containers do, or has no requests left.
[[nodiscard]] std::shared_ptr<Kernel> synchronous_kernel();

}  // namespace offstage::aio
