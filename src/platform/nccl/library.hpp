#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/error.hpp"
#include "base/slice.hpp"
#include "base/units.hpp"

namespace offstage::nccl {

class NcclError : public Error {
 public:
  explicit NcclError(std::string const& message) : Error{ExitCode::other, "NCCL: " + message} {}
};

/// By which ranks find each other: made by one of them, known to all.
using UniqueId = std::array<std::byte, 128>;

/// The ranks of a run, each with a GPU of its own.
///
/// Order:   both queue their work on a stream (a cudaStream_t of this rank's GPU) and return; all
///          ranks call the same ones in the same order. Whoever uses several streams sees to it
///          that what is called later runs later.
/// Waiting: until work that was called before is queued, and until all ranks are connected.
/// Threads: one.
/// Errors:  NcclError, also for what went wrong in the background since.
class Communicator {
 public:
  virtual ~Communicator() = default;

  /// Rank r contributes the r-th of as many equal parts of `buffer`, device memory, as there are
  /// ranks; afterwards every rank has all parts.
  virtual void all_gather(void* stream, std::span<std::byte> buffer) = 0;
  /// Sends the bytes send_parts[r] of `send` to rank r and receives from it into receive_parts[r]
  /// of `receive`, device memory both. Parts may be empty, but what one sends the other receives.
  /// Not to itself.
  virtual void all_to_all(void* stream, std::span<std::byte const> send,
                          std::span<Slice const> send_parts, std::span<std::byte> receive,
                          std::span<Slice const> receive_parts) = 0;
  /// Nothing else follows. If all is well, work that is queued is done first. Else (`failed`: some
  /// rank may not come any more) it ends where it is, so that its streams can end.
  virtual void end(bool failed) noexcept = 0;
};

/// libnccl, which is loaded and not linked: one program runs with it and without.
class Library {
 public:
  virtual ~Library() = default;
  /// "2.28.3"
  [[nodiscard]] virtual std::string version() const = 0;
  [[nodiscard]] virtual UniqueId make_id() const = 0;
  /// Takes the calling thread's current GPU, which is to be the current one in every call. The
  /// library must outlive it. Collective: returns when all ranks have come.
  [[nodiscard]] virtual std::unique_ptr<Communicator> connect(UniqueId const& id, int rank,
                                                              int ranks) const = 0;
};

/// Whether offstage was built with NCCL's header; else no library can be loaded.
[[nodiscard]] bool is_built_in() noexcept;

/// From this file, or where that is empty from where the system finds libnccl.so.2, or else from
/// where it was when offstage was built.
/// Errors: NcclError: it is not there, or was not when offstage was built, or is older than what
///         offstage was built with by a major version.
[[nodiscard]] std::unique_ptr<Library> load_library(std::string const& file = "");

/// Device memory that a communicator of these ranks takes on each, estimated for a plan: as much as
/// between GPUs on an NVSwitch, where it is most. 0 for one rank.
[[nodiscard]] Bytes device_bytes(int ranks, int ranks_per_node) noexcept;

}  // namespace offstage::nccl
