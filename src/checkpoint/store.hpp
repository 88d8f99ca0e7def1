#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "checkpoint/meta.hpp"
#include "checkpoint/optimizer_state.hpp"
#include "checkpoint/removal.hpp"
#include "checkpoint/retention.hpp"
#include "checkpoint/save_stats.hpp"
#include "checkpoint/split_parameters.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"

namespace offstage::checkpoint {

/// The newest format that this program writes and reads; it reads older ones and refuses newer ones
/// by name.
constexpr int format_version = 8;

/// Checkpoints that a node's level 1 holds at a time: the newest complete one and one that is being
/// saved, the last one that is copied to partners if there are any, which is an older one where
/// copies failed or were given up, and the one that the run was told to begin at.
[[nodiscard]] constexpr std::int64_t most_in_level_1(bool makes_copies, bool begins_there) {
  return 2 + (makes_copies ? 1 : 0) + (begins_there ? 1 : 0);
}

class LevelParts;
class NodeFile;
class PartnerCopies;
class ReadAhead;

/// How fast this rank writes what the tiers hold, beside updates.
struct SaveRate {
  double bytes_per_second{};  ///< 0: a save ends before the next update
  double of_paths{};          ///< and at most this part of what a path reads; 0: any
};

/// What a run keeps, and wants from a checkpoint: of this optimizer. Other moments are converted, which the log says.
struct RunState {
  RunState(state::ModelShape of_model, OptimizerState of_optimizer = {})
      : model{std::move(of_model)}, state{std::move(of_optimizer)} {}

  state::ModelShape model;
  OptimizerState state;
};

/// Takes the restored FP32 parameters of a subgroup, verified, to rebuild the working copy. The rest of the checkpoint may
/// turn out to be damaged after that: then those of another one follow. Not called where they are split, which rebuilds it.
using OnSubgroup = std::function<void(state::Subgroup const&, std::span<float const> parameter)>;

struct Destination;
struct Outcome;

/// A directory of checkpoints, `step-000000100` each:
///
///   rank-0000.h5     /subgroup/K/PLANE: the values of one plane (base/state_layout.hpp), all planes of a
///                    subgroup one after the other as in its extent, written around the HDF5 library (the file
///                    offset comes from H5Dget_offset, aligned to 4096 bytes); /checksum/K: u64,
///                    XXH3-64 of each 16 KiB of the extent
///   node-0000.h5     instead of those of the ranks of a node: the same below /rank/R
///   extent-0000-000003.h5
///                    /PLANE, instead of /subgroup/3 in rank-0000.h5, where the tiers shared it: README.md
///   rank-0000.json   manifest: for each subgroup its file offset, its pieces (layer, first chunk,
///                    chunks) and the XXH3-64 of its /checksum/K; the size of the rank file
///   master.h5        attributes (Meta, model.* keys, optimizer, moments, planes, format_version, a checksum
///                    of all of them);
///                    /rank/file, file_bytes, manifest, manifest_checksum: the files of each rank;
///                    /extent/file, file_bytes: those of extents;
///                    virtual datasets /PLANE/NAME that show every tensor whole (fill value NaN), of
///                    the planes that have a value for each element
///
/// Which rank's manifest lists a chunk follows from state::ShardMap, the format and the number of ranks.
///
/// Commit: data, fsync, manifest, fsync, master under another name, fsync, all that HDF5 wrote read
/// back, rename, fsync of the directories. A checkpoint is complete if master.h5 is there and every file
/// and manifest it names is. Older checkpoints beyond what `retention` keeps, and incomplete older ones,
/// are removed only after that, and only sound ones count as kept (retention.hpp); what cannot be read
/// (a newer format, an I/O error) is left alone, and so is, beside those, the checkpoint that restore() took. The
/// removal goes on behind the run until the next save or the end, which wait for it. Where extents are by reference the
/// next update takes the space that the removal frees, so there the save itself waits.
///
/// What restore_newest or pass_over_after passed over never counts as kept. The first save that
/// succeeds renames it to passed-over-step-N (with .2, .3, ... if that is taken) and says so: the
/// run goes on past it, so a later start must not take it, should it load again. A save of its very
/// step replaces it, and removes it only once the new one is complete (replacement.hpp). Commit and
/// renames are one: until they are done the new checkpoint holds a list, `passed-over`, of the names, by
/// which the next start does what a killed one left.
///
/// Level 1 is a directory of each node, of the same name, with its ranks' files and a master of its own, which shows no
/// tensors. There a save removes all others once it is complete, and before it begins all but the
/// newest (most_in_level_1); with copies on partners (level 3) the last one that is copied stays
/// until the next is. A restart takes it if every rank finds what it needs, of one and the same save: on its node, or on
/// another, from which it is copied first.
///
/// Collective: every member. Errors on any rank are thrown on all ranks (mpi::AgreedError).
class Store {
 public:
  /// `key` is what named the directory.
  Store(std::string directory, Retention retention, mpi::Communicator const& comm,
        std::string key = "checkpoint.dir");
  /// Level 1 on a node.
  struct Node {
    mpi::Communicator const& ranks;  ///< that see the directory; they outlive the Store
    std::string copies{};            ///< directory of level 3 (PartnerCopies); empty: none
    bool makes_copies = false;
  };
  /// Level 1, of checkpoint.local.
  Store(std::string directory, mpi::Communicator const& comm, Node node);
  /// A save that has begun and not finished is given up; its directory stays, as that of a killed run.
  ~Store();

  /// The tiers of all saves and restores that follow hold split parameters. Before the first of them.
  void set_split(SplitParameters split) { split_ = std::move(split); }

  /// Writes the state that `tiers` hold for `subgroups` (this rank's; key = Subgroup::index).
  /// Creates the directory if need be. A failed save leaves earlier checkpoints as they were and
  /// removes its own files as far as it can; an I/O error (74) names the key. The step that
  /// this Store restored or saved last is there already and is left as it is (0 bytes); what
  /// another run left under the step's name is replaced, and said so.
  SaveStats save(Meta const& meta, state::ShardMap const& map,
                 std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers);
  /// The same in two parts, with a thread that writes this rank's files between them, on one core (Staging says
  /// what must not go on meanwhile). It is a checkpoint once finish_save has returned; none begins before.
  void begin_save(Meta const& meta, state::ShardMap const& map,
                  std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers);
  /// Saves in two parts write what the tiers hold beside updates, so fast. Where parameters are
  /// split, a save ends before the next update.
  void set_rate(SaveRate const& rate) { rate_ = rate; }
  /// The ranks of `node` write one file together in all saves that follow; `subgroups`: of this
  /// rank.
  void set_node_files(mpi::Communicator const& node, std::int64_t subgroups);
  /// The state is written through this path, on which the directory lies, and behind the run's own
  /// transfers. null: none.
  void set_path(tiers::StoragePath* path) { path_ = path; }
  [[nodiscard]] bool is_saving() const noexcept { return saving_ != nullptr; }
  /// Waits, between begin_save and an update, until the update may begin. Returns whether
  /// finish_save would not wait.
  [[nodiscard]] bool may_update();
  SaveStats finish_save();

  /// Loads the newest complete checkpoint whose checksums hold into `tiers`; any number of ranks
  /// and any subgroup size may have written it. Each rank reads its own part alone. Says (log)
  /// which it passed over and why, and which it took. Nothing there but unfinished saves: nullopt.
  /// Passed over is what is damaged: reads that fail are tried again for two seconds, and what
  /// seems damaged is read twice (patience.hpp).
  /// Errors: DataError (65) if there are checkpoints but none loads, if one is of another model or
  ///         optimizer than the run (names the keys that differ; model.max-sequence may) or of a newer
  ///         format; IoError (74) if one could not be read, so that nobody knows.
  [[nodiscard]] std::optional<Meta> restore_newest(RunState const& run, state::ShardMap const& map,
                                                   std::vector<state::Subgroup> const& subgroups,
                                                   tiers::Tiers& tiers,
                                                   OnSubgroup const& on_subgroup);
  /// The same of several levels: the newest checkpoint of all, of equal steps that of the first. What cannot be read of
  /// level 1 is passed over too. Returns who it was as well.
  struct Found {
    Meta meta;
    Store* level;
  };
  [[nodiscard]] static std::optional<Found> restore_newest(
      std::span<Store* const> levels, RunState const& run, state::ShardMap const& map,
      std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers,
      OnSubgroup const& on_subgroup);
  /// Loads this checkpoint or fails: `path` is a step directory. Saves of this Store do not remove
  /// it, so that the same command can take it again.
  [[nodiscard]] Meta restore(std::string const& path, RunState const& run,
                             state::ShardMap const& map,
                             std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers,
                             OnSubgroup const& on_subgroup);
  /// The run begins at `step` because its user said so, after restore() or afresh: later steps in
  /// the directory are of an earlier run, and resume=auto would take them. They are treated, and
  /// said (log) to be, as what restore_newest passed over.
  void pass_over_after(std::int64_t step);
  [[nodiscard]] std::string const& directory() const noexcept { return directory_; }
  /// Whether the next save has to set aside what was passed over.
  [[nodiscard]] bool has_passed_over() const;
  /// True on all ranks if the step directory `path` lies in this one. Not collective.
  [[nodiscard]] bool has(std::string const& path) const;
  /// Level 1: removes what was passed over. Before a save of another level is complete, which would be older than that.
  /// The next call tries again to remove what could not be removed.
  void remove_passed_over();
  /// Level 1: removes all checkpoints but one that restore() took, as level 2 has what they have. What cannot be removed
  /// stays, and is said so (log).
  void remove_all();

  /// Level 1: its step, which a save has just completed, begins to be copied to partners, if that
  /// is asked for (PartnerCopies). Errors: IoError.
  void begin_copies(std::int64_t step);
  /// Goes on with that; does not wait. Not collective.
  void look_in();
  [[nodiscard]] bool is_copying() const;
  /// If the copies are there on all nodes, they count from now on, and level 1 keeps no other step.
  /// Errors: IoError.
  std::optional<CopyStats> finish_copies_if_done();
  /// Ends what is being copied, if anything is.
  void give_up_copies();
  /// No more are made. The last ones stay, and level 1 keeps their step.
  void stop_copies();

  /// The checkpoint of this step stays beyond Retention, in place of the one of the call before; -1:
  /// none yet, but one will. On all ranks.
  void keep_best(std::int64_t step) noexcept { best_ = step; }

  /// Waits for what is being removed. Not collective.
  void finish_removal() noexcept { removal_.wait(); }

  /// How many checkpoints more than now the run from `step` to `last` may have to hold at a time.
  /// Not collective; of rank 0. Errors: IoError.
  [[nodiscard]] std::int64_t most_to_come(std::int64_t step, std::int64_t last) const;

 private:
  struct Saving;
  [[nodiscard]] bool leads() const { return near_.rank() == 0; }
  [[nodiscard]] bool is_local() const { return &near_ != &comm_; }
  [[nodiscard]] bool has_parts() const;
  [[nodiscard]] std::vector<std::string> candidates(state::ShardMap const& map);
  [[nodiscard]] Outcome try_level(std::string const& name, Destination const& to) const;
  [[nodiscard]] std::vector<std::string> superfluous(std::int64_t saved);
  [[nodiscard]] std::vector<std::string> others(std::string const& newest) const;
  void remove_older();
  void tidy_level(std::int64_t saved);
  bool make_step_directory(std::int64_t step, Bytes space);
  void begin(Meta const& meta, state::ShardMap const& map,
             std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers, int threads,
             SaveRate const& rate);
  void begin_files(Saving& saving, std::vector<state::Subgroup> const& subgroups,
                   tiers::Tiers& tiers, int threads);
  void complete(Saving& saving);
  [[nodiscard]] SplitParameters const* split() const { return split_ ? &*split_ : nullptr; }
  void abandon(std::int64_t step) const noexcept;
  void took(std::string const& canonical_path);
  void say_loaded(std::string const& path, Meta const& meta, RunState const& run);
  void tidy(std::int64_t saved, bool by_reference);
  void settle_earlier_save();
  void finish_earlier_save();
  /// finish_earlier_save; false after an I/O error of level 1, which is no reason not to take another.
  bool settle_level();
  [[nodiscard]] std::vector<std::string> spared() const;

  std::string directory_;
  Retention retention_;
  std::optional<std::int64_t> best_;  ///< keep_best
  mpi::Communicator const& comm_;
  mpi::Communicator const& near_;  ///< who sees the directory: all, or of level 1 a node's
  std::string key_;
  std::optional<SplitParameters> split_;
  SaveRate rate_;
  tiers::StoragePath* path_ = nullptr;
  // Canonical paths, on near_'s rank 0 alone:
  std::string current_;          ///< the step directory that was restored or saved last
  std::string named_;            ///< the one that restore() took
  std::set<std::string> sound_;  ///< what it wrote, loaded or looked through
  std::vector<std::string>
      passed_over_;  ///< names instead; not yet set aside, of level 1 not yet removed
  Removal removal_;
  std::unique_ptr<NodeFile> node_file_;  ///< null: a file for each rank
  std::uint32_t saves_ = 0;              ///< begun
  std::unique_ptr<Saving> saving_;       ///< between begin_save and finish_save
  std::shared_ptr<ReadAhead> ending_;    ///< of the restore: what gives asynchronous I/O back
  // Members of a store of level 1 alone:
  mpi::Communicator messages_;
  std::unique_ptr<LevelParts> parts_;
  std::unique_ptr<PartnerCopies> copies_;
};

/// One entry of a listing.
struct Listed {
  std::string path;
  int level = 2;  ///< 1: node storage; 3: copies there of another node's
  bool complete{};
  bool partial{};       ///< of level 1: complete but for the files of ranks on other nodes
  bool unfinished{};    ///< its save did not come to its end: nothing is lost, nothing damaged
  std::string problem;  ///< why it is not complete or not readable; empty if it is
  Meta meta;            ///< if complete or partial
  Bytes bytes{};
};

/// Whether list() would find any. Errors: IoError.
[[nodiscard]] bool holds_any(std::string const& path);
/// All checkpoints of a directory, oldest first, and those of its run's levels 1 and 3 that this
/// node has; `path` may be a step directory itself, or a checkpoint.local.
/// Errors: DataError if there is none, IoError if the directory cannot be read. Not collective.
[[nodiscard]] std::vector<Listed> list(std::string const& path);

/// Reads everything a checkpoint names, of levels 1 and 3 what is here, and compares all checksums;
/// the problems found, empty if none. Not collective.
[[nodiscard]] std::vector<std::string> verify(Listed const& checkpoint);

/// Compares the planes of two complete checkpoints of one model bit for bit, whatever ranks and
/// subgroup sizes wrote them (model.max-sequence may differ); one line per tensor and plane that
/// differs (how many values, the first one's element, the largest difference) and per plane that both do not
/// have alike, empty if nothing differs. Reads chunk by chunk. Not collective.
/// Errors: DataError if the models differ or a file is damaged.
[[nodiscard]] std::vector<std::string> compare(Listed const& a, Listed const& b);

}  // namespace offstage::checkpoint
