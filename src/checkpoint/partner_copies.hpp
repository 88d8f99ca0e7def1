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
#include "checkpoint/store.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::checkpoint {

/// Level 3: each node's checkpoint of level 1 once more on the next node (NodeRing), in directories
/// of the same names below LevelPlaces::copies. A copy counts once it has its master, which it gets
/// when all nodes' copies of the step are durable. From then on others are removed there, and level
/// 1 may lose those before; until then both levels hold the one before, so that one step is whole
/// on two nodes each at any time.
///
/// Threads:    one calls, the one that calls MPI.
/// Collective: begin(), finish_if_done(), give_up() and stop(). Errors there: mpi::AgreedError.
class PartnerCopies {
 public:
  /// `makes`: else there are only those that an earlier run left. `comm` is of nobody else; both
  /// outlive it.
  PartnerCopies(LevelPlaces places, bool makes, mpi::Communicator const& comm,
                mpi::Communicator const& node);
  /// A copy that is being made must have been given up.
  ~PartnerCopies() = default;
  PartnerCopies(PartnerCopies const&) = delete;
  PartnerCopies& operator=(PartnerCopies const&) = delete;

  [[nodiscard]] bool makes() const noexcept { return makes_; }
  /// Level 1 has this step, on all nodes: its copies are begun. None is being made. Errors:
  /// IoError.
  void begin(std::int64_t step);
  [[nodiscard]] bool goes_on() const noexcept { return exchange_ != nullptr; }
  /// Moves what can be moved while a copy is being made; does not wait. Not collective.
  void look_in();
  /// If that is done on all nodes, the copy counts from now on. Errors: IoError, DataError; there
  /// is no such copy then.
  [[nodiscard]] std::optional<CopyStats> finish_if_done();
  /// Ends what is being made, without a copy.
  void give_up();
  /// Makes no more. The step that both levels hold stays in both: the loss of a node still costs no
  /// more than what is since then.
  void stop();

  /// The step that both levels hold until the next copy counts; none if there is none.
  [[nodiscard]] std::optional<std::int64_t> kept() const noexcept { return kept_; }
  /// The run has begun at this step of level 1, or at one whose copies are not whole and this one's
  /// are; null: it has begun beside level 1.
  void keep(std::optional<std::int64_t> step) noexcept { kept_ = makes_ ? step : std::nullopt; }
  /// Removes all but the one that is kept and the one that is being made. Not collective. Errors:
  /// IoError.
  void remove_others();
  /// Removes all, and waits for what else is being removed. Not collective. What stays is said so
  /// (log).
  void remove_all() noexcept;

 private:
  [[nodiscard]] bool leads() const { return node_.rank() == 0; }
  void abandon() noexcept;
  /// The copies that remove_others() removes.
  [[nodiscard]] std::vector<std::string> others() const;
  /// Begins their removal behind the run.
  void begin_removal() noexcept;

  LevelPlaces places_;
  bool makes_;
  mpi::Communicator const& comm_;
  mpi::Communicator const& node_;
  NodeRing ring_;
  std::optional<std::int64_t> kept_;
  std::int64_t step_ = 0;  ///< that is being copied
  Stopwatch since_begin_;
  std::unique_ptr<FileExchange> exchange_;
  Removal removal_;
};

}  // namespace offstage::checkpoint
