#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "base/units.hpp"
#include "platform/aio/file.hpp"

namespace offstage::aio {

struct EngineSettings {
  Bytes request_bytes = 8 * MiB;  ///< a multiple of direct_alignment
  int queue_depth = 4;            ///< requests in flight
  /// A system without requests left (fs.aio-max-nr) is an error. Else one request moves at a time
  /// then, after a warning.
  bool must_have_requests = false;
};

/// The kernel calls that an Engine makes; replaced by a fault-injecting double in tests.
class Kernel;
[[nodiscard]] std::shared_ptr<Kernel> libaio_kernel();

/// Moves bytes between memory and a file with Linux asynchronous I/O, several requests in flight.
///
/// Memory:  host; for a direct file memory, offset and length are multiples of direct_alignment.
/// Order:   read and write return when every byte has moved and every completion's result was
///          looked at: short transfers continue, EINTR and EAGAIN retry. After an error the
///          requests in flight are drained before the throw, so the memory may be reused.
/// Threads: one thread per engine (a context is expensive to make: keep it).
/// Errors:  IoError naming the operation, path, offset and cause; a read past the end of the file
///          counts as an error. A transfer that failed as it does while a file system fails over or
///          a drive is reset is tried again, with a warning, after each of `pauses_between_tries`.
///          Once that was in vain, nothing is tried again until a transfer has succeeded. A direct
///          file whose transfer is refused (EINVAL) goes on without O_DIRECT, with a warning.
class Engine {
 public:
  explicit Engine(EngineSettings settings = {}, std::shared_ptr<Kernel> kernel = libaio_kernel());
  ~Engine();
  Engine(Engine const&) = delete;
  Engine& operator=(Engine const&) = delete;

  /// Called at most once, by the calling thread, when the last requests of a transfer of several
  /// are under way: none is left to begin, one has ended, and half the queue depth or less has not.
  /// Must not throw.
  using OnLast = std::function<void()>;
  void read(File const& file, std::span<std::byte> memory, Bytes offset,
            OnLast const& on_last = {});
  void write(File const& file, std::span<std::byte const> memory, Bytes offset,
             OnLast const& on_last = {});

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace offstage::aio
