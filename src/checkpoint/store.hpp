#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "checkpoint/local_directory.hpp"
#include "checkpoint/meta.hpp"
#include "checkpoint/removal.hpp"
#include "checkpoint/retention.hpp"
#include "checkpoint/run_state.hpp"
#include "checkpoint/save_rate.hpp"
#include "checkpoint/save_stats.hpp"
#include "checkpoint/split_parameters.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"

namespace offstage::checkpoint {

/// The number of checkpoints that a node's level 1 holds at a time: the newest complete one, and
/// one that is being saved. With partners the last one that is copied to them is a third; it is
/// older where copies failed or were given up. The one at which the run was told to begin is
/// another.
[[nodiscard]] constexpr std::int64_t most_in_level_1(bool makes_copies, bool begins_there) {
  return 2 + (makes_copies ? 1 : 0) + (begins_there ? 1 : 0);
}

class LevelParts;
class NodeFile;
class PartnerCopies;
class ReadAhead;

struct Destination;
struct Outcome;

/// A directory of checkpoints, `step-000000100` each:
///
///   rank-0000.h5     /subgroup/K/PLANE: the values of one plane (base/state_layout.hpp). All
///                    planes of a subgroup follow each other as in its extent. They are written
///                    around the HDF5 library (the file offset comes from H5Dget_offset, aligned to
///                    4096 bytes). /checksum/K: u64, XXH3-64 of each 16 KiB of the extent
///   node-0000.h5     instead of those of the ranks of a node: the same below /rank/R
///   extent-0000-000003.h5
///                    /PLANE, instead of /subgroup/3 in rank-0000.h5, for an extent that the tiers
///                    gave away: README.md
///   rank-0000.json   manifest: for each subgroup its file offset, its pieces (layer, first chunk,
///                    chunks) and the XXH3-64 of its /checksum/K; the size of the rank file
///   master.h5        attributes (Meta, model.* keys, optimizer, moments, planes, format_version, a
///                    checksum of all of them);
///                    /rank/file, file_bytes, manifest, manifest_checksum: the files of each rank;
///                    /extent/file, file_bytes: those of extents;
///                    virtual datasets /PLANE/NAME that show every tensor whole (fill value NaN),
///                    of the planes that have a value for each element
///
/// state::ShardMap, the format and the number of ranks tell which rank's manifest lists a chunk.
///
/// Commit: data, fsync, manifest, fsync, master under another name, fsync, read-back of everything
///         that HDF5 wrote, rename, fsync of the directories. A checkpoint is complete if master.h5
///         is there and every file and manifest that it names. Only after that older checkpoints
///         that `retention` does not keep, and incomplete older ones, are removed. Only sound ones
///         count as kept (retention.hpp). Checkpoints that cannot be read (a newer format, an I/O
///         error) stay, and so does the one that restore() took. The removal goes on in the
///         background until the next save or the end, which wait for it. With extents by reference
///         the next update takes the space that the removal frees, so the save itself waits.
///
/// A checkpoint that restore_newest or pass_over_after passed over never counts as kept. The first
/// save that succeeds renames it to passed-over-step-N (with .2, .3, ... if that is taken) and logs
/// it: the run goes on past it, so that a later start must not take it, even if it loads again. A
/// save of the same step replaces it, and removes it only once the new one is complete
/// (replacement.hpp). Commit and renames are one operation: until they are done, the new checkpoint
/// has a list of the names, `passed-over`, by which the next start does the rest of a killed run's
/// renames.
///
/// Level 1 is a directory of each node, of the same name, with its ranks' files and a master of its
/// own, which shows no tensors. Before a save begins there, all checkpoints but the newest are
/// removed, and once it is complete all others (most_in_level_1). With copies on partners (level 3)
/// the last one that is copied stays until the next is copied. A restart takes level 1 if every
/// rank finds its part of one and the same save on its node, or on another, from which it is copied
/// first.
///
/// Collective: every member. Errors on any rank are thrown on all ranks (mpi::AgreedError).
class Store {
 public:
  /// `key` is the configuration key that named the directory.
  Store(std::string directory, Retention retention, mpi::Communicator const& comm,
        std::string key = "checkpoint.dir");
  /// Level 1 on a node.
  struct Node {
    mpi::Communicator const& ranks;  ///< ranks that see the directory; they must outlive the Store
    std::string copies{};            ///< directory of level 3 (PartnerCopies); empty: none
    bool makes_copies = false;
    std::uint64_t start = 0;      ///< this start of the run
    std::vector<Start> starts{};  ///< starts before it (LocalDirectory)
  };
  /// A store of level 1, in checkpoint.local.
  Store(std::string directory, mpi::Communicator const& comm, Node node);
  /// Gives up a save that has begun and not finished. Its directory stays, as that of a killed run
  /// does.
  ~Store();
  Store(Store const&) = delete;
  Store& operator=(Store const&) = delete;

  /// Says that the tiers of all saves and restores hold split parameters. Call it before the first
  /// of them.
  void set_split(SplitParameters split) { split_ = std::move(split); }

  /// Writes the state that `tiers` hold for `subgroups` (this rank's; key = Subgroup::index).
  /// Creates the directory if need be. A failed save leaves earlier checkpoints as they were and
  /// removes its own files as far as it can; an I/O error (74) names the key. If this Store
  /// restored or saved the step last, the checkpoint is left as it is (0 bytes). A checkpoint of
  /// the step that another run left is replaced, which the log says. After an error that may end by
  /// itself (ends_by_itself) all is written once more.
  SaveStats save(Meta const& meta, state::ShardMap const& map,
                 std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers);
  /// begin_save and finish_save are save() in two parts. Between them a thread writes this rank's
  /// files on one core (Staging says what must not go on meanwhile). The checkpoint is complete
  /// once finish_save has returned; no other save begins before. `subgroups` and `tiers` live until
  /// then. finish_save writes again what failed, unless the save has a rate.
  void begin_save(Meta const& meta, state::ShardMap const& map,
                  std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers);
  /// Sets the rate at which saves in two parts write held versions beside updates. With split
  /// parameters a save ends before the next update.
  void set_rate(SaveRate const& rate) { rate_ = rate; }
  /// Makes the ranks of `node` write one file together in all saves that follow. `subgroups` is the
  /// number of this rank's.
  void set_node_files(mpi::Communicator const& node, std::int64_t subgroups);
  /// Sets the path on which the directory lies. The state is written through it, and the run's own
  /// transfers go first. Null: no path.
  void set_path(tiers::StoragePath* path) { path_ = path; }
  [[nodiscard]] bool is_saving() const noexcept { return saving_ != nullptr; }
  /// Waits, between begin_save and an update, until the update may begin. Returns whether
  /// finish_save would not wait.
  [[nodiscard]] bool may_update();
  SaveStats finish_save();

  /// A checkpoint that was loaded, and the store that has it.
  struct Found {
    Meta meta;
    Store* level;
  };
  /// Loads the newest complete checkpoint of some levels whose checksums hold into `tiers`; of
  /// equal steps that of the first level. Any number of ranks and any subgroup size may have
  /// written it. Each rank reads its own part alone. Logs which checkpoints it passed over and why,
  /// and which it took. Returns nullopt if there are unfinished saves at most. Damaged checkpoints
  /// are passed over, and so is one of level 1 that cannot be read. Reads that fail are tried again
  /// for two seconds, and a file that seems damaged is read twice (patience.hpp).
  /// Errors: DataError (65) if there are checkpoints but none loads, if one is of another model or
  ///         optimizer than the run (names the keys that differ; model.max-sequence may) or of a
  ///         newer format; IoError (74) if one could not be read, so that nobody knows whether it
  ///         is sound.
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
  /// Passes over the steps after `step`, at which the user has told the run to begin, after
  /// restore() or afresh. They belong to an earlier run, and resume=auto would take them. They are
  /// treated as those that restore_newest passed over, which the log says.
  void pass_over_after(std::int64_t step);
  [[nodiscard]] std::string const& directory() const noexcept { return directory_; }
  /// Keeps the checkpoint `path` from removal by saves of this Store, as restore() does.
  /// Collective.
  void spare(std::string const& path);
  /// Returns whether the next save has to set aside checkpoints that were passed over.
  [[nodiscard]] bool has_passed_over() const;
  /// Returns true if the step directory `path` lies in this directory, the same on all ranks. Not
  /// collective.
  [[nodiscard]] bool has(std::string const& path) const;
  /// Level 1: removes the checkpoints that were passed over. Call it before a save of another level
  /// is complete, which would be older than they are. The next call tries again to remove those
  /// that could not be removed.
  void remove_passed_over();
  /// Level 1: removes all checkpoints but the one that restore() took, because level 2 has the
  /// same. The log names those that cannot be removed.
  void remove_all();

  /// Level 1: begins to copy this step, which a save has just completed, to partners, if copies are
  /// configured (PartnerCopies). Errors: IoError.
  void begin_copies(std::int64_t step);
  /// Moves pieces of the copy. Does not wait. Not collective.
  void look_in();
  [[nodiscard]] bool is_copying() const;
  /// If all nodes have the copies, they count from now on, and level 1 keeps no other step.
  /// Errors: IoError.
  std::optional<CopyStats> finish_copies_if_done();
  /// Ends the copy that is being made, if there is one.
  void give_up_copies();
  /// Makes no more copies. The last ones stay, and level 1 keeps their step.
  void stop_copies();

  /// Keeps the checkpoint of this step beyond Retention, in place of that of the call before. -1:
  /// there is none yet, but one will come. Call it on all ranks.
  void keep_best(std::int64_t step) noexcept { best_ = step; }
  /// Keeps what earlier starts up to `step` keep for good (kept_before). Their best one stays until
  /// keep_best() is called and the checkpoint that it names is there. Collective.
  /// Errors: mpi::AgreedError.
  void keep_what_was_kept(std::int64_t step);

  /// Waits for removals in the background. Not collective.
  void finish_removal() noexcept { removal_.wait(); }

  /// The largest number of further checkpoints that the run from `step` to `last` may have to hold
  /// at a time. Not collective; for rank 0. Errors: IoError.
  [[nodiscard]] std::int64_t most_to_come(std::int64_t step, std::int64_t last) const;

 private:
  struct Saving;
  [[nodiscard]] bool leads() const { return near_.rank() == 0; }
  [[nodiscard]] bool is_local() const { return &near_ != &comm_; }
  [[nodiscard]] bool has_parts() const;
  [[nodiscard]] std::vector<std::string> candidates(state::ShardMap const& map);
  [[nodiscard]] Outcome try_level(std::string const& name, Destination const& to);
  void note_unreadable(mpi::AgreedError const& error);
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
  /// Does the same as finish_earlier_save. Returns false after an I/O error of level 1, which is no
  /// reason against another save.
  bool settle_level();
  [[nodiscard]] std::vector<std::string> spared() const;

  std::string directory_;
  Retention retention_;
  std::optional<std::int64_t> best_;  ///< step that keep_best() named
  KeptBefore kept_before_;            ///< on rank 0 alone
  mpi::Communicator const& comm_;
  /// Ranks that see the directory: all, or those of a node at level 1.
  mpi::Communicator const& near_;
  std::string key_;
  std::optional<SplitParameters> split_;
  SaveRate rate_;
  tiers::StoragePath* path_ = nullptr;
  // The next members are canonical paths, on near_'s rank 0 alone.
  std::string current_;  ///< the step directory that was restored or saved last
  std::string named_;    ///< the checkpoint that restore() took, or spare()
  /// Level 2: checkpoints there that this run wrote, loaded or looked through.
  std::set<std::string> sound_;
  /// Names, not paths, of checkpoints not yet set aside; at level 1, not yet removed. Those that
  /// this start passed over are here on all ranks; near_'s rank 0 alone acts on them.
  std::vector<std::string> passed_over_;
  /// Level 1: the reason for which something could not be read when the run began; empty: all
  /// could. Checkpoints in it were passed over.
  std::string unreadable_;
  std::uint64_t start_ = 0;  ///< this start of the run; level 1
  Removal removal_;
  std::unique_ptr<NodeFile> node_file_;  ///< null: a file for each rank
  std::uint32_t saves_ = 0;              ///< times that files of a save have begun
  std::unique_ptr<Saving> saving_;       ///< between begin_save and finish_save
  std::shared_ptr<ReadAhead> ending_;  ///< the restore's threads, which give asynchronous I/O back
  // The next members are those of a store of level 1 alone.
  mpi::Communicator messages_;
  std::unique_ptr<LevelParts> parts_;
  std::unique_ptr<PartnerCopies> copies_;
};

}  // namespace offstage::checkpoint
