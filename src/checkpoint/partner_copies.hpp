#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/stopwatch.hpp"
#include "checkpoint/file_exchange.hpp"
#include "checkpoint/level_parts.hpp"
#include "checkpoint/node_ring.hpp"
#include "checkpoint/removal.hpp"
#include "checkpoint/save_stats.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::checkpoint {

/// Level 3: a copy of each node's checkpoint of level 1 on the next node (NodeRing), in directories
/// of the same names below LevelPlaces::copies. A copy counts once it has its master, which it gets
/// when all nodes' copies of the step are durable. From then on other copies are removed, and level
/// 1 may remove earlier checkpoints. Until then both levels hold the step before, so that every
/// part of one step lies on two nodes at any time.
///
/// Threads:    one calls the members, the one that calls MPI.
/// Collective: begin(), finish_if_done(), give_up() and stop(). Errors there: mpi::AgreedError.
class PartnerCopies {
 public:
  /// `makes`: copies are made; else there are only copies that an earlier run left. Nobody else
  /// uses `comm`. `comm` and `node` must outlive this object.
  PartnerCopies(LevelPlaces places, bool makes, mpi::Communicator const& comm,
                mpi::Communicator const& node);
  /// The caller has given up a copy that was being made.
  ~PartnerCopies() = default;
  PartnerCopies(PartnerCopies const&) = delete;
  PartnerCopies& operator=(PartnerCopies const&) = delete;

  [[nodiscard]] bool makes() const noexcept { return makes_; }
  /// Begins the copies of this step, which level 1 has on all nodes. No other copy is being made.
  /// Errors: IoError.
  void begin(std::int64_t step);
  [[nodiscard]] bool is_under_way() const noexcept { return exchange_ != nullptr; }
  /// Moves pieces of the copy that is being made. Does not wait. Not collective.
  void look_in();
  /// If all nodes have the copy, it counts from now on. Errors: IoError, DataError; the copy is
  /// lost then.
  [[nodiscard]] std::optional<CopyStats> finish_if_done();
  /// Ends the copy that is being made, without a result.
  void give_up();
  /// Makes no more copies. The step that both levels hold stays in both, so that the loss of a node
  /// still costs no more than the steps since then.
  void stop();

  /// The step that both levels hold until the next copy counts; none if there is none.
  [[nodiscard]] std::optional<std::int64_t> kept() const noexcept { return kept_; }
  /// Says which step of level 1 to keep: the one at which the run has begun, or the newest with
  /// whole copies if that one's are not whole. Null: the run has not begun at level 1.
  void keep(std::optional<std::int64_t> step) noexcept { kept_ = makes_ ? step : std::nullopt; }
  /// Removes all copies but the one that is kept and the one that is being made. Not collective.
  /// Errors: IoError.
  void remove_others();
  /// Removes all copies, and waits for earlier removals. Not collective. The log names copies that
  /// stay.
  void remove_all() noexcept;

 private:
  [[nodiscard]] bool leads() const { return node_.rank() == 0; }
  void abandon() noexcept;
  /// The copies that remove_others() removes.
  [[nodiscard]] std::vector<std::string> others() const;
  /// Begins to remove them in the background.
  void begin_removal() noexcept;

  LevelPlaces places_;
  bool makes_;
  mpi::Communicator const& comm_;
  mpi::Communicator const& node_;
  NodeRing ring_;
  std::optional<std::int64_t> kept_;
  std::int64_t step_ = 0;  ///< step that is being copied
  Stopwatch since_begin_;
  std::unique_ptr<FileExchange> exchange_;
  Removal removal_;
};

}  // namespace offstage::checkpoint
