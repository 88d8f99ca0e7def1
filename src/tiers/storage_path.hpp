#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "plan/split.hpp"
#include "platform/aio/engine.hpp"
#include "platform/trace/trace.hpp"
#include "tiers/node_lock.hpp"
#include "tiers/path_settings.hpp"
#include "tiers/throttle.hpp"
#include "tiers/traffic.hpp"

namespace offstage::tiers {

/// The most that one turn of a path transfers.
constexpr Bytes path_turn_bytes = 64 * MiB;

/// State of one path that the processes of a node share; all zeros at first.
struct alignas(64) PathShared {
  NodeLockState read_lock;  ///< half duplex: of both directions
  NodeLockState write_lock;
  ThrottleState throttle;
  std::atomic<std::uint32_t> left_out;  ///< not 0: nothing more is written there
  /// Transfers that wait or are under way and let nobody pass. Half duplex: of both directions in
  /// the first.
  std::atomic<std::uint32_t> reads_in_a_hurry;
  std::atomic<std::uint32_t> writes_in_a_hurry;
};

/// Whether others still go first; asked again and again.
using LetsPass = std::function<bool()>;

/// One storage path as this process uses it: the only door to its bandwidth.
///
/// Order:   transfers of this process begin in order of arrival, `processes` x `threads` at a time,
///          in each direction if duplex is full. With a shared lock `processes` processes of the
///          node hold the path at a time: exclusive access (MLP section 3.2, "process-exclusive,
///          multi-thread shared"). A turn serves the transfers of its process, `threads` at a time;
///          once another process waits, no more than path_turn_bytes of them. The next turn begins
///          while the last requests of this one are under way, the same for the next transfer of a
///          turn; but an emulated path is held to the end. Whoever is inside waits for nothing
///          else.
///          A transfer with `lets_pass` (a save's) begins once no other one waits or is under way,
///          on any process of the node, or once that is false: then it waits its turn as any other.
/// Threads: any.
/// Errors:  IoError of the engine; nothing is retried here beyond what the engine retries.
class StoragePath {
 public:
  /// Zero at first; outlives the path.
  struct Sharing {
    PathShared* lock{};  ///< null: processes do not wait for each other
    PathShared* rest{};  ///< null: throttled and left out for this process alone
    int ranks = 1;       ///< processes of the node that use the path
  };
  /// A null kernel is libaio. Rows of the trace: `read DIR` and `write DIR`. Errors: IoError if the
  /// system has no asynchronous requests left (fs.aio-max-nr): all that the path will need are
  /// taken here.
  StoragePath(PathSettings settings, Sharing sharing, std::shared_ptr<aio::Kernel> kernel,
              trace::Trace* trace);
  ~StoragePath();
  StoragePath(StoragePath const&) = delete;
  StoragePath& operator=(StoragePath const&) = delete;

  /// Memory, offset and length as aio::Engine wants them.
  void read(aio::File const& file, std::span<std::byte> memory, Bytes offset,
            LetsPass const& lets_pass = {});
  void write(aio::File const& file, std::span<std::byte const> memory, Bytes offset,
             LetsPass const& lets_pass = {});

  [[nodiscard]] PathSettings const& settings() const noexcept { return settings_; }
  [[nodiscard]] PathTraffic traffic() const;
  /// Rate of the whole path, all processes of the node together: what one transfer reaches, without
  /// waiting, times PathSettings::transfers(), and times the processes that use it if they do not
  /// wait for each other. As given or set at first (given rates are starting values too), then as
  /// follow_rates finds them; 0: not known.
  [[nodiscard]] plan::PathRate rate() const;
  /// Takes the traffic into the rates, by half, for each direction in which 8 MiB have moved since
  /// that was last done: to be called once per step.
  void follow_rates();
  /// Sets both; the traffic so far is forgotten.
  void set_rates(double read_rate, double write_rate);

  /// False once a write of any process of the node has failed for good: nothing more is written
  /// here, what lies here is read.
  [[nodiscard]] bool writable() const noexcept { return shared_->left_out == 0; }
  /// From now on. The first of the node's processes says so, once, in a warning.
  void leave_out(std::string const& cause);
  /// Why this process left the path out, or that another did; empty while it is writable.
  [[nodiscard]] std::string why_left_out() const;

 private:
  class Admission;
  /// One direction's rate, and the traffic that it knows of.
  struct Followed {
    double rate{};
    Bytes bytes{};
    Seconds seconds{};
  };
  void transfer(aio::Direction direction, aio::File const& file, std::span<std::byte> memory,
                Bytes offset, LetsPass const& lets_pass);
  void transfer_piece(aio::Direction direction, aio::File const& file, std::span<std::byte> memory,
                      Bytes offset, LetsPass const& lets_pass);
  [[nodiscard]] std::atomic<std::uint32_t>& in_a_hurry(aio::Direction direction) const noexcept;
  void record(aio::Direction direction, Bytes bytes, Seconds waited, Seconds taken);

  PathSettings settings_;
  std::unique_ptr<Admission> reads_;
  std::unique_ptr<Admission> writes_;  ///< null: half duplex, reads_ serves both
  std::unique_ptr<PathShared> own_;    ///< if nothing is shared
  PathShared* shared_;
  /// Queue of all paths on its device, if processes wait for each other; else shared_.
  PathShared* queue_;
  double at_once_;  ///< transfers of all processes of the node
  std::unique_ptr<Throttle> throttle_;
  trace::Trace* trace_;
  std::string read_row_, write_row_;  ///< rows of the trace
  mutable std::mutex mutex_;          ///< guards all below
  PathTraffic traffic_;
  Followed read_, write_;
  std::string cause_;  ///< cause of leaving it out, if this process did
};

struct PathSetSettings {
  std::vector<PathSettings> paths;
  /// Whether processes take turns on each path; empty: on all of them. Paths of one device
  /// are alike. Without shared memory they exclude each other within this process.
  std::vector<bool> exclusive{};
  /// shared_bytes(paths) zero bytes that the node's processes share.
  std::span<std::byte> shared{};
  std::shared_ptr<aio::Kernel> kernel{};  ///< null: libaio; a test brings a failing one
  trace::Trace* trace{};
  int ranks = 1;  ///< processes of the node that use the paths
};

/// The paths of a run, in the order of the configuration. Those on the same device share a lock,
/// that of the first of them.
/// Errors: as lock_owners; PreconditionError if `shared` is too small or not aligned as PathShared
///         is, or if `exclusive` is of another number of paths.
using PathSet = std::vector<std::unique_ptr<StoragePath>>;
[[nodiscard]] std::shared_ptr<PathSet> make_paths(PathSetSettings const& settings);
/// The first path on the device of each path; an emulated path stands for a device of its own,
/// wherever it lies. Errors: IoError naming tiers.path if a directory cannot be looked at.
[[nodiscard]] std::vector<std::size_t> lock_owners(std::vector<PathSettings> const& paths);
[[nodiscard]] Bytes shared_bytes(std::vector<PathSettings> const& paths);

/// How measure_rates goes about it.
struct Measure {
  Seconds time{};  ///< each way
  /// Largest size of the file, which is never more than half of what is free there.
  Bytes most{};
  Bytes memory = std::numeric_limits<Bytes>::max();  ///< memory of all transfers at a time
};

/// Writes and reads a file in the path's directory until its end or that of the time (one transfer
/// at least), through the path itself, with PathSettings::transfers() threads: see
/// StoragePath::rate, which this does not change. Reads what was just written: with O_DIRECT from
/// the device, else this is too high, which a warning says. Blocks must come back as they were
/// written.
/// Files:  as make_spill_file, under the name `spill`, which tidy_spills knows.
/// Memory: one transfer of at most path_turn_bytes per thread, one block at least.
/// Errors: IoError naming tiers.path and the directory.
[[nodiscard]] plan::PathRate measure_rates(StoragePath& path, std::string const& spill,
                                           Measure const& measure);

}  // namespace offstage::tiers
