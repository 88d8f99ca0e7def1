#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/thread.hpp"
#include "base/units.hpp"
#include "device/device.hpp"
#include "state/exchange.hpp"
#include "tiers/tiers.hpp"

namespace offstage::activations {

/// Workers of each direction: each has a block's extent, a buffer, in its hands.
struct StoredSettings {
  int writers = 1;
  int readers = 1;
  /// A vertical schedule's: a part is read when it is taken, however often, and may be put again.
  bool on_demand = false;
  /// Leases that the tiers have to give: with fewer a reader could wait for a buffer that those
  /// ahead of it hold.
  [[nodiscard]] int buffers() const { return writers + readers; }
};

/// Activations in a virtual tier: host memory first, the rest on the storage paths. What leaves of
/// a block is one extent, which a writer takes from the device and commits, and a reader fetches
/// ahead of its use, the last block first.
///
/// Order:   unless parts are read on demand, readers take blocks descending, so that the extents of
///          a lower block never wait for those of a higher one alone. Of tiers that evict what is
///          farthest the first blocks go to storage and the last stay.
/// Threads: "act-out-N" and "act-back-N", a stream each. The model's thread waits in queue_behind
///          until a copy is queued, which for a put is when a buffer is free, for a take when the
///          extent is in host memory.
/// Errors:  what a worker fails with comes out of the points that are waited for, and of the next
///          call. PreconditionError as of HostActivations.
class StoredActivations final : public state::ActivationStore {
 public:
  /// `tiers` has extents() and as many leases as StoredSettings::buffers. All outlive this.
  StoredActivations(std::span<state::LeavingPart const> parts, tiers::Tiers& tiers,
                    device::Device& device, StoredSettings const& settings);
  ~StoredActivations() override;
  StoredActivations(StoredActivations const&) = delete;
  StoredActivations& operator=(StoredActivations const&) = delete;

  void open() override;
  [[nodiscard]] std::shared_ptr<device::Event> put(
      int block, int part, std::span<std::byte const> memory,
      std::shared_ptr<device::Event> const& made) override;
  [[nodiscard]] std::shared_ptr<device::Event> take(
      int block, int part, std::span<std::byte> memory,
      std::shared_ptr<device::Event> const& freed) override;
  [[nodiscard]] state::ActivationTraffic traffic() const override;

  /// Bytes of each block's extent, blocks ascending.
  [[nodiscard]] static std::vector<Bytes> extents(std::span<state::LeavingPart const> parts);

 private:
  using Point = std::shared_ptr<device::Event>;
  /// A part on its way, out of `memory` or back to it.
  struct Move {
    std::span<std::byte> memory;
    Point after;
    Bytes offset{};
    std::promise<Point> queued;
  };
  /// A block on its way. Those of a key go one after the other, as they were told.
  struct Passage {
    tiers::Key key{};
    std::int64_t number{};   ///< number of the key's use in this micro-batch
    std::size_t parts{};     ///< number of its moves; on demand each part goes alone
    std::deque<Move> moves;  ///< as they are told
    bool cancelled = false;
  };
  struct Block {
    tiers::Key key{};
    std::map<int, std::pair<Bytes, Bytes>> parts;  ///< offset and bytes of each
    /// Passage of this micro-batch: its forward, then its backward; or the latest one.
    std::shared_ptr<Passage> passage;
    std::int64_t begun{};  ///< passages, in this micro-batch
  };
  struct Queue {
    std::deque<std::shared_ptr<Passage>> waiting;
    std::vector<std::shared_ptr<Passage>> at_work;
  };
  struct Cancelled {};

  std::shared_ptr<device::Event> tell(int block, int part, std::span<std::byte> memory,
                                      Point const& after);
  /// A block's way begins.
  void begin_passage(Block& block, Queue& queue);
  void begin_readers();
  void work(Queue& queue, device::Stream& stream, bool out) noexcept;
  /// Returns once the key's passages before this one have ended, so that a lease finds the right
  /// version. What comes back does not wait where it is cancelled or where another worker has
  /// failed.
  void wait_for_turn(Passage const& passage, bool out);
  void write(Passage& passage, device::Stream& stream);
  void read(Passage& passage, device::Stream& stream);
  /// Queues the copies of all parts, as they are told.
  void copy_parts(Passage& passage, device::Stream& stream, std::byte* extent, bool out);
  void fail(std::exception_ptr const& error, Passage& passage) noexcept;
  void stop() noexcept;

  tiers::Tiers& tiers_;
  bool on_demand_;
  mutable std::mutex mutex_;  ///< guards all below but the streams
  std::condition_variable changed_;
  std::map<int, Block> blocks_;
  std::size_t left_to_put_{};  ///< parts, of this micro-batch
  Queue out_, back_;
  std::vector<std::int64_t> ended_;  ///< passages by key, in this micro-batch
  std::exception_ptr error_;
  bool stopping_ = false;
  Bytes put_{}, taken_{};
  std::shared_ptr<Seconds> waited_ = std::make_shared<Seconds>();  ///< the model's thread's alone
  std::vector<std::unique_ptr<device::Stream>> streams_;
  std::vector<NamedThread> threads_;  // last: they use all of the above
};

}  // namespace offstage::activations
