// Stores under MPI, on 1, 2 and 3 ranks; `self` plays a run on one rank beside the one on all
// ranks.
#include "checkpoint/store.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/extent_file.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/reader.hpp"
#include "checkpoint/sample.hpp"
#include "platform/h5/file.hpp"
#include "platform/scratch_directory.hpp"

namespace offstage::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t two_chunks = 2 * chunk_elements;

/// Tiers that fail when the state is fetched.
class FailingTiers final : public tiers::Tiers {
 public:
  tiers::Lease fetch(tiers::Key) override { throw IoError{"the disk is gone"}; }
  tiers::Lease create(tiers::Key) override { throw IoError{"the disk is gone"}; }
  [[nodiscard]] tiers::Traffic traffic() const override { return {}; }
  [[nodiscard]] Bytes host_bytes() const override { return 0; }

 protected:
  void commit(tiers::Key, std::int64_t) override {}
  void discard(tiers::Key, std::int64_t, bool) noexcept override {}
};

/// A directory that all ranks know, and a run on all ranks.
class CheckpointStore : public ::testing::Test {
 protected:
  void TearDown() override { world.barrier(); }

  /// Saves state `seed` as this step, as a run of its own.
  SaveStats save(std::int64_t step, std::uint64_t seed) {
    Shard shard = make_shard();
    shard.fill(seed);
    return store.save(meta(step), shard.map, shard.subgroups, *shard.tiers);
  }

  /// Restores the newest; the step and whether all bits on all ranks are those of state `seed`.
  std::pair<std::int64_t, bool> restore_newest(std::uint64_t seed) {
    Shard shard = make_shard();
    Store fresh{directory, {}, world};
    auto const found = fresh.restore_newest(small_model(), shard.map, shard.subgroups, *shard.tiers,
                                            ignore_parameters);
    if (!found) {
      return {-1, false};
    }
    return {found->step, world.minimum(shard.holds(seed) ? 1 : 0) == 1};
  }

  /// The message that every rank gets when nothing can be restored.
  std::string refusal(state::ModelShape const& model) {
    Shard shard = make_shard(model);
    Store fresh{directory, {}, world};
    return message_of<mpi::AgreedError>([&] {
      (void)fresh.restore_newest(model, shard.map, shard.subgroups, *shard.tiers,
                                 ignore_parameters);
    });
  }

  [[nodiscard]] Shard make_shard(state::ModelShape const& model = small_model()) const {
    return {model, world.size(), world.rank(), two_chunks};
  }
  [[nodiscard]] Meta meta(std::int64_t step) const {
    Meta made = sample_meta(small_model(), step);
    made.ranks = world.size();
    return made;
  }
  [[nodiscard]] std::string path(std::int64_t step) const {
    return directory + "/" + step_name(step);
  }
  /// Puts a shard on a persistent path beside the checkpoints, but for one extent.
  void put_on_persistent_path(Shard& shard) const {
    std::vector<Bytes> sizes;
    Bytes largest = 3 * chunk_elements * 4;
    for (state::Subgroup const& subgroup : shard.subgroups) {
      sizes.push_back(subgroup.state_bytes());
      largest = std::max(largest, subgroup.state_bytes());
    }
    tiers::PathSettings path;
    path.directory = fs::path{directory}.parent_path().string();
    path.persistent = true;
    tiers::VirtualSettings settings;
    settings.paths = tiers::make_paths({.paths = {path}});
    settings.spill = "offstage-test-" + std::to_string(world.rank());
    settings.cached = 1;
    settings.buffers = 1;
    settings.kept =
        std::make_shared<tiers::KeptFileShape>(shape_of_slots(directory, world.rank(), largest));
    shard.tiers = tiers::make_virtual_tiers(sizes, settings);
  }
  /// Runs on rank 0, between barriers.
  template <class Action>
  void on_one_rank(Action&& action) {
    world.barrier();
    if (world.rank() == 0) {
      action();
    }
    world.barrier();
  }
  [[nodiscard]] std::vector<std::int64_t> steps() const {
    world.barrier();
    std::vector<std::int64_t> found;
    for (StepDirectory const& step : step_directories(directory)) {
      found.push_back(step.step);
    }
    world.barrier();
    return found;
  }
  static void ignore_parameters(state::Subgroup const&, std::span<float const>) {}

  mpi::Communicator world = mpi::Communicator::world();
  std::unique_ptr<ScratchDirectory> scratch =
      world.rank() == 0 ? std::make_unique<ScratchDirectory>() : nullptr;
  std::string directory = world.broadcast(scratch ? *scratch / "checkpoints" : std::string{}, 0);
  Store store{directory, {}, world};
};

TEST_F(CheckpointStore, NothingThereIsNoError) {
  EXPECT_EQ(restore_newest(1).first, -1);
}

TEST_F(CheckpointStore, RestoresTheBitsAndTheMetaThatWereSaved) {
  SaveStats const stats = save(12, 4);
  EXPECT_EQ(stats.path, path(12));
  Shard shard = make_shard();
  std::int64_t parameters = 0;
  bool equal = true;
  auto const found =
      Store(directory, {}, world)
          .restore_newest(small_model(), shard.map, shard.subgroups, *shard.tiers,
                          [&](state::Subgroup const& subgroup, std::span<float const> parameter) {
                            auto const expected = Shard::expected(subgroup, 4);
                            parameters += static_cast<std::int64_t>(parameter.size());
                            equal = equal && std::equal(parameter.begin(), parameter.end(),
                                                        expected.begin());
                          });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->samples, meta(12).samples);
  EXPECT_EQ(found->ranks, world.size());
  EXPECT_EQ(parameters, shard.map.shard_elements(world.rank()));
  EXPECT_EQ(stats.bytes, 12 * parameters);
  EXPECT_TRUE(equal);
  EXPECT_TRUE(shard.holds(4));
  on_one_rank([&] { EXPECT_TRUE(verify(list(path(12)).at(0)).empty()); });
}

TEST_F(CheckpointStore, OneRankRestoresWhatAllSaved) {
  save(1, 8);
  on_one_rank([&] {
    mpi::Communicator const self = mpi::Communicator::self();
    Shard alone{small_model(), 1, 0, 5 * chunk_elements};
    Meta const found = Store(directory, {}, self)
                           .restore(path(1), small_model(), alone.map, alone.subgroups,
                                    *alone.tiers, ignore_parameters);
    EXPECT_EQ(found.step, 1);
    EXPECT_TRUE(alone.holds(8));
  });
}

TEST_F(CheckpointStore, AllRanksRestoreWhatOneSaved) {
  on_one_rank([&] {
    mpi::Communicator const self = mpi::Communicator::self();
    Shard alone{small_model(), 1, 0, 3 * chunk_elements};
    alone.fill(6);
    Store(directory, {}, self)
        .save(sample_meta(small_model(), 5), alone.map, alone.subgroups, *alone.tiers);
  });
  EXPECT_EQ(restore_newest(6), std::pair(std::int64_t{5}, true));
}

TEST_F(CheckpointStore, HostMemoryAndStorageRestoreFromEachOther) {
  auto const on_storage = [&](Shard& shard) {
    std::vector<Bytes> sizes;
    for (state::Subgroup const& subgroup : shard.subgroups) {
      sizes.push_back(subgroup.state_bytes());
    }
    tiers::PathSettings path;
    path.directory = fs::path{directory}.parent_path().string();
    path.read_rate = path.write_rate = 1e9;
    tiers::VirtualSettings settings;
    settings.paths = tiers::make_paths({.paths = {path}});
    settings.spill = "offstage-test-" + std::to_string(world.rank());
    settings.cached = 1;
    shard.tiers = tiers::make_virtual_tiers(sizes, settings);
  };
  save(1, 3);
  Shard shard = make_shard();
  on_storage(shard);
  EXPECT_TRUE(store.restore_newest(small_model(), shard.map, shard.subgroups, *shard.tiers,
                                   ignore_parameters));
  EXPECT_TRUE(shard.holds(3));
  shard.fill(4);
  store.save(meta(2), shard.map, shard.subgroups, *shard.tiers);
  EXPECT_EQ(restore_newest(4), std::pair(std::int64_t{2}, true));
}

TEST_F(CheckpointStore, KeepsBitsByReferenceThroughRetentionAndRestart) {
  {
    Shard shard = make_shard();
    put_on_persistent_path(shard);
    for (std::int64_t const step : {1, 2, 3, 4, 5}) {
      shard.fill(static_cast<std::uint64_t>(step));
      auto const stats = store.save(meta(step), shard.map, shard.subgroups, *shard.tiers);
      EXPECT_GT(stats.referred, 0);
      EXPECT_EQ(world.sum(stats.bytes) + stats.referred,
                world.sum(12 * shard.map.shard_elements(world.rank())));
    }
    EXPECT_THAT(steps(), ElementsAre(4, 5));
    shard.fill(6);  // what both have is not written over
  }
  EXPECT_EQ(restore_newest(5), std::pair(std::int64_t{5}, true));
  on_one_rank([&] {
    EXPECT_THAT(names_of(directory + "/slots"), ::testing::IsEmpty());
    EXPECT_TRUE(verify(list(path(4)).at(0)).empty());
    mpi::Communicator const self = mpi::Communicator::self();
    Shard alone{small_model(), 1, 0, 5 * chunk_elements};
    (void)Store(directory, {}, self)
        .restore(path(4), small_model(), alone.map, alone.subgroups, *alone.tiers,
                 ignore_parameters);
    EXPECT_TRUE(alone.holds(4));
  });
}

TEST_F(CheckpointStore, GoesOnFromACheckpointByReferenceInNewSlots) {
  std::vector<std::string> before;
  auto const files = [&] {
    std::vector<std::string> contents;
    for (std::string const& name : names_of(path(1))) {
      contents.push_back(name + read_text(path(1) + "/" + name));
    }
    return contents;
  };
  {
    Shard shard = make_shard();
    put_on_persistent_path(shard);
    shard.fill(1);
    store.save(meta(1), shard.map, shard.subgroups, *shard.tiers);
  }
  on_one_rank([&] { before = files(); });
  Shard shard = make_shard();
  put_on_persistent_path(shard);
  Store restarted{directory, {}, world};
  EXPECT_TRUE(restarted.restore_newest(small_model(), shard.map, shard.subgroups, *shard.tiers,
                                       ignore_parameters));
  EXPECT_TRUE(shard.holds(1));
  shard.fill(2);
  restarted.save(meta(2), shard.map, shard.subgroups, *shard.tiers);
  shard.fill(3);
  on_one_rank([&] { EXPECT_TRUE(before == files()) << "an old run's files are read alone"; });
  EXPECT_EQ(restore_newest(2), std::pair(std::int64_t{2}, true));
}

TEST_F(CheckpointStore, AFailureAfterExtentsWereSharedLeavesNothingOfTheSave) {
  Shard shard = make_shard();
  put_on_persistent_path(shard);
  shard.fill(1);
  store.save(meta(1), shard.map, shard.subgroups, *shard.tiers);
  shard.fill(2);
  // The rank file cannot be made where a directory is: the extents are linked by then.
  class Blocking final : public tiers::Tiers {
   public:
    Blocking(tiers::Tiers& real, std::string obstacle)
        : real_{real}, obstacle_{std::move(obstacle)} {}
    tiers::Lease fetch(tiers::Key key) override { return real_.fetch(key); }
    tiers::Lease create(tiers::Key key) override { return real_.create(key); }
    std::optional<tiers::SharedExtent> share(tiers::Key key, std::string const& name) override {
      fs::create_directory(obstacle_);
      return real_.share(key, name);
    }
    [[nodiscard]] tiers::Traffic traffic() const override { return {}; }
    [[nodiscard]] Bytes host_bytes() const override { return 0; }

   protected:
    void commit(tiers::Key, std::int64_t) override {}
    void discard(tiers::Key, std::int64_t, bool) noexcept override {}

   private:
    tiers::Tiers& real_;
    std::string obstacle_;
  };
  std::string const obstacle = path(2) + "/rank-0000.h5";
  Blocking blocking{*shard.tiers, obstacle};
  EXPECT_THROW(store.save(meta(2), shard.map, shard.subgroups, blocking), mpi::AgreedError);
  EXPECT_TRUE(shard.holds(2));
  EXPECT_EQ(restore_newest(1), std::pair(std::int64_t{1}, true));
  on_one_rank([&] { fs::remove_all(path(2)); });
  shard.fill(3);
  store.save(meta(2), shard.map, shard.subgroups, *shard.tiers);
  EXPECT_EQ(restore_newest(3), std::pair(std::int64_t{2}, true));
}

TEST_F(CheckpointStore, KeepsTheNewestAndWhatIsNotItsOwn) {
  on_one_rank([&] {
    (void)write_ranks(directory + "/step-000000001", small_model(), 1, two_chunks, 1);
    fs::create_directory(directory + "/step-old");
    overwrite(directory + "/notes", "mine");
  });
  for (std::int64_t const step : {2, 3, 4}) {
    save(step, 1);
  }
  EXPECT_THAT(steps(), ElementsAre(3, 4));
  EXPECT_TRUE(fs::exists(directory + "/step-old"));
  EXPECT_TRUE(fs::exists(directory + "/notes"));
}

TEST_F(CheckpointStore, KeepsWhatIsKeptForGoodBesideTheNewest) {
  Shard shard = make_shard();
  shard.fill(1);
  Store milestones{directory, {.keep = 2, .keep_every = 3}, world};
  for (std::int64_t step = 1; step <= 8; ++step) {
    milestones.save(meta(step), shard.map, shard.subgroups, *shard.tiers);
  }
  EXPECT_THAT(steps(), ElementsAre(3, 6, 7, 8));
  milestones.save(meta(9), shard.map, shard.subgroups, *shard.tiers);
  EXPECT_THAT(steps(), ElementsAre(3, 6, 7, 8, 9)) << "one kept for good does not count";
}

TEST_F(CheckpointStore, RemovesAnIncompleteOlderCheckpointButNoUnreadableOne) {
  save(1, 1);
  on_one_rank([&] {
    fs::remove(path(1) + "/rank-0000.h5");
    write_checkpoint(directory, 2, 1, two_chunks, 1);
    overwrite(path(2) + "/master.h5", "garbage, or a format of the future");
  });
  save(3, 1);
  EXPECT_THAT(steps(), ElementsAre(2, 3));
}

TEST_F(CheckpointStore, SavesNoStepTwice) {
  save(1, 1);
  EXPECT_GT(world.sum(save(2, 2).bytes), 0);
  EXPECT_EQ(world.sum(save(2, 2).bytes), 0);
  Shard shard = make_shard();
  Store restarted{directory, {}, world};
  (void)restarted.restore(path(2) + "/", small_model(), shard.map, shard.subgroups, *shard.tiers,
                          ignore_parameters);
  SaveStats const again = restarted.save(meta(2), shard.map, shard.subgroups, *shard.tiers);
  EXPECT_EQ(world.sum(again.bytes), 0);
  EXPECT_EQ(restore_newest(2), std::pair(std::int64_t{2}, true));
}

TEST_F(CheckpointStore, ReplacesWhatAnotherRunOrAKilledOneLeftUnderItsStep) {
  save(1, 1);
  on_one_rank([&] {
    write_checkpoint(directory, 2, 1, two_chunks, 7);
    (void)write_ranks(path(3), small_model(), 5, two_chunks, 7);
  });
  save(2, 2);
  EXPECT_EQ(restore_newest(2), std::pair(std::int64_t{2}, true));
  save(3, 3);
  EXPECT_EQ(restore_newest(3), std::pair(std::int64_t{3}, true));
}

TEST_F(CheckpointStore, AFailureOnOneRankIsThrownOnAllAndLeavesTheCheckpointBefore) {
  save(1, 1);
  Shard shard = make_shard();
  shard.fill(2);
  FailingTiers failing;
  bool const fails = world.rank() == 0;  // rank 0 owns something whatever the number of ranks
  EXPECT_THAT(message_of<mpi::AgreedError>([&] {
                tiers::Tiers& used = fails ? static_cast<tiers::Tiers&>(failing) : *shard.tiers;
                store.save(meta(2), shard.map, shard.subgroups, used);
              }),
              AllOf(StartsWith("checkpoint.dir=" + directory), HasSubstr("the disk is gone")));
  EXPECT_THAT(steps(), ElementsAre(1));
  EXPECT_EQ(restore_newest(1), std::pair(std::int64_t{1}, true));
}

TEST_F(CheckpointStore, NamesAFileInThePlaceOfItsDirectory) {
  on_one_rank([&] { overwrite(scratch->path() + "/file", ""); });
  std::string const inside = fs::path{directory}.parent_path() / "file/checkpoints";
  Shard shard = make_shard();
  shard.fill(1);
  try {
    Store(inside, {}, world).save(meta(1), shard.map, shard.subgroups, *shard.tiers);
    FAIL() << "no error";
  } catch (mpi::AgreedError const& error) {
    EXPECT_EQ(error.code(), ExitCode::io);
    EXPECT_THAT(error.what(), AllOf(StartsWith("checkpoint.dir=" + inside + ": cannot save step 1"),
                                    HasSubstr("/file: Not a directory"), HasSubstr("put right")));
  }
}

TEST_F(CheckpointStore, FallsBackTogetherFromDamageInOneRankFile) {
  save(1, 1);
  save(2, 2);
  on_one_rank([&] {
    Reader const reader{path(2), read_master(path(2))};
    int last = world.size() - 1;
    while (reader.manifest(last).subgroups.empty()) {
      --last;
    }
    flip_bit(path(2) + "/" + rank_file_name(last), reader.manifest(last).subgroups[0].offset);
  });
  EXPECT_EQ(restore_newest(1), std::pair(std::int64_t{1}, true));
}

TEST_F(CheckpointStore, FallsBackFromFilesThatAreShortOrMissing) {
  auto const falls_back_after = [&](auto&& damage) {
    on_one_rank([&] { write_checkpoint(directory, 9, 3, two_chunks, 9); });
    EXPECT_EQ(restore_newest(9), std::pair(std::int64_t{9}, true));
    on_one_rank(damage);
    EXPECT_EQ(restore_newest(1), std::pair(std::int64_t{1}, true));
    on_one_rank([&] { fs::remove_all(path(9)); });
  };
  save(1, 1);
  falls_back_after([&] { shorten(path(9) + "/rank-0001.h5", 1); });
  falls_back_after([&] { fs::remove(path(9) + "/rank-0002.h5"); });
  falls_back_after([&] { fs::remove(path(9) + "/rank-0000.json"); });
  falls_back_after([&] { overwrite(path(9) + "/rank-0002.json", "{}"); });
  falls_back_after([&] { overwrite(path(9) + "/master.h5", "garbage"); });
  falls_back_after([&] { fs::remove(path(9) + "/master.h5"); });
}

TEST_F(CheckpointStore, NeverStartsAfreshWhereCheckpointsAreButNoneLoads) {
  save(1, 1);
  save(2, 1);
  on_one_rank([&] {
    overwrite(path(1) + "/master.h5", "garbage");
    fs::remove(path(2) + "/rank-0000.h5");
  });
  EXPECT_THAT(refusal(small_model()),
              AllOf(HasSubstr(directory), HasSubstr(path(1)), HasSubstr("checkpoint.resume=none")));
}

TEST_F(CheckpointStore, AnUnfinishedSaveIsNoCheckpoint) {
  on_one_rank([&] { (void)write_ranks(path(1), small_model(), 2, two_chunks, 1); });
  EXPECT_EQ(restore_newest(1).first, -1);
}

/// Flips a bit of state that checksums alone tell.
void damage(std::string const& step_directory) {
  Reader const reader{step_directory, read_master(step_directory)};
  flip_bit(step_directory + "/rank-0000.h5", reader.manifest(0).subgroups[0].offset);
}

TEST_F(CheckpointStore, SetsAsideWhatItPassedOverAndKeepsWhatItTook) {
  save(4, 4);
  save(6, 6);
  on_one_rank([&] {
    damage(path(6));
    fs::create_directory(directory + "/passed-over-step-000000006");
    overwrite(directory + "/passed-over-step-000000006/notes", "mine");
  });
  Shard shard = make_shard();
  Store restarted{directory, {}, world};
  auto const found = restarted.restore_newest(small_model(), shard.map, shard.subgroups,
                                              *shard.tiers, ignore_parameters);
  EXPECT_EQ(found->step, 4);
  EXPECT_THAT(steps(), ElementsAre(4, 6));
  restarted.save(meta(5), shard.map, shard.subgroups, *shard.tiers);
  EXPECT_THAT(steps(), ElementsAre(4, 5));
  on_one_rank([&] {
    std::string const aside = directory + "/passed-over-step-000000006.2";
    EXPECT_THAT(verify(list(aside).at(0)), ElementsAre(HasSubstr("rank-0000.h5")));
    EXPECT_TRUE(fs::exists(directory + "/passed-over-step-000000006/notes"));
    damage(path(5));
  });
  EXPECT_EQ(restore_newest(4), std::pair(std::int64_t{4}, true));
}

TEST_F(CheckpointStore, NeverGoesBackToACheckpointThatWasAwayForAMoment) {
  save(4, 4);
  save(6, 6);
  std::string const file = path(6) + "/rank-0000.h5";
  on_one_rank([&] { fs::rename(file, directory + "/away"); });
  Shard shard = make_shard();
  Store restarted{directory, {}, world};
  (void)restarted.restore_newest(small_model(), shard.map, shard.subgroups, *shard.tiers,
                                 ignore_parameters);
  FailingTiers failing;
  EXPECT_THROW(restarted.save(meta(5), shard.map, shard.subgroups, failing), mpi::AgreedError);
  EXPECT_THAT(steps(), ElementsAre(4, 6));
  on_one_rank([&] { fs::rename(directory + "/away", file); });
  restarted.save(meta(5), shard.map, shard.subgroups, *shard.tiers);
  EXPECT_EQ(restore_newest(4), std::pair(std::int64_t{5}, true));
}

TEST_F(CheckpointStore, ReplacesWhatItPassedOverBySavingThatStep) {
  save(4, 4);
  save(6, 6);
  on_one_rank([&] { damage(path(6)); });
  Shard shard = make_shard();
  Store restarted{directory, {}, world};
  (void)restarted.restore_newest(small_model(), shard.map, shard.subgroups, *shard.tiers,
                                 ignore_parameters);
  restarted.save(meta(6), shard.map, shard.subgroups, *shard.tiers);
  EXPECT_THAT(steps(), ElementsAre(4, 6));
  EXPECT_FALSE(fs::exists(directory + "/passed-over-step-000000006"));
  EXPECT_EQ(restore_newest(4), std::pair(std::int64_t{6}, true));
}

/// While it lives nothing can be renamed to this name, as if the process had died before.
class Obstacle {
 public:
  explicit Obstacle(std::string path) : path_{std::move(path)} {
    fs::create_symlink(fs::path{path_}.filename(), path_);
  }
  ~Obstacle() { fs::remove(path_); }
  Obstacle(Obstacle const&) = delete;
  Obstacle& operator=(Obstacle const&) = delete;

 private:
  std::string path_;
};

TEST_F(CheckpointStore, NeverGoesBackToAnEarlierRunAfterDyingBeforeItWasSetAside) {
  save(8, 8);
  save(9, 9);
  std::unique_ptr<Obstacle> obstacle;
  on_one_rank(
      [&] { obstacle = std::make_unique<Obstacle>(directory + "/passed-over-step-000000009"); });
  Shard shard = make_shard();
  shard.fill(2);
  Store afresh{directory, {}, world};
  afresh.pass_over_after(0);
  afresh.save(meta(2), shard.map, shard.subgroups, *shard.tiers);
  EXPECT_THAT(steps(), ElementsAre(2, 9));
  EXPECT_EQ(restore_newest(2), std::pair(std::int64_t{2}, true)) << "it could not be set aside";
  on_one_rank([&] { obstacle.reset(); });
  EXPECT_EQ(restore_newest(2), std::pair(std::int64_t{2}, true));
  EXPECT_THAT(steps(), ElementsAre(2)) << "the start did what the save had left";
  on_one_rank([&] {
    EXPECT_TRUE(verify(list(directory + "/passed-over-step-000000009").at(0)).empty());
    EXPECT_FALSE(fs::exists(path(2) + "/passed-over"));
  });
}

TEST_F(CheckpointStore, LeavesTheEarlierRunsCheckpointsInForceUntilItsOwnIsComplete) {
  save(9, 9);
  on_one_rank([&] {
    (void)write_ranks(path(2), small_model(), 2, two_chunks, 1);
    overwrite(path(2) + "/passed-over", "step-000000009\n");
  });
  EXPECT_EQ(restore_newest(9), std::pair(std::int64_t{9}, true));
}

TEST_F(CheckpointStore, TakesAStepThatItSavedInThePlaceOfOneThatCouldNotBeSetAside) {
  save(3, 9);
  std::unique_ptr<Obstacle> obstacle;
  on_one_rank(
      [&] { obstacle = std::make_unique<Obstacle>(directory + "/passed-over-step-000000003"); });
  Shard shard = make_shard();
  shard.fill(2);
  Store afresh{directory, {}, world};
  afresh.pass_over_after(0);
  for (std::int64_t const step : {1, 2, 3}) {
    afresh.save(meta(step), shard.map, shard.subgroups, *shard.tiers);
    on_one_rank([&] { EXPECT_EQ(fs::exists(path(step) + "/passed-over"), step < 3); });
  }
  on_one_rank([&] { obstacle.reset(); });
  EXPECT_EQ(restore_newest(2), std::pair(std::int64_t{3}, true));
}

TEST_F(CheckpointStore, ReadsNothingIntoAListThatIsNotItsOwn) {
  save(1, 1);
  save(2, 2);
  on_one_rank([&] {
    overwrite(path(2) + "/passed-over", std::string{"step-000000002\n../checkpoints\n\nstep-\n"} +
                                            '\0' + "step-000000001\n./step-000000001\n*");
  });
  EXPECT_EQ(restore_newest(2), std::pair(std::int64_t{2}, true));
  EXPECT_THAT(steps(), ElementsAre(1, 2));
}

TEST_F(CheckpointStore, SparesTheNamedCheckpointThatAListNames) {
  save(1, 1);
  save(2, 2);
  on_one_rank([&] { overwrite(path(1) + "/passed-over", "step-000000002\n"); });
  Shard shard = make_shard();
  (void)store.restore(path(2), small_model(), shard.map, shard.subgroups, *shard.tiers,
                      ignore_parameters);
  store.pass_over_after(2);
  EXPECT_EQ(restore_newest(2), std::pair(std::int64_t{2}, true));
}

TEST_F(CheckpointStore, KnowsHowManyMoreThereMayBe) {
  auto const more = [&](Retention const& retention, std::int64_t step, std::int64_t last) {
    return Store(directory, retention, world).most_to_come(step, last);
  };
  EXPECT_EQ(more({.keep = 2}, 0, 100), 3);
  EXPECT_EQ(more({.keep = 2}, 98, 100), 2) << "no more than steps";
  EXPECT_EQ(more({.keep = 2}, 101, 100), 0);
  EXPECT_EQ(more({.keep = 2, .keep_every = 10}, 0, 100), 13);
  EXPECT_EQ(more({.keep = 2, .keep_every = 1}, 0, 100), 100);
  save(4, 1);
  save(5, 1);
  EXPECT_EQ(more({.keep = 2}, 5, 100), 1) << "each new one takes the place of an old one";
  EXPECT_EQ(more({.keep = 2, .keep_every = 4}, 5, 8), 3) << "step 4 stays beside the newest two";
  EXPECT_EQ(more({.keep = 3}, 5, 100), 2);
  store.pass_over_after(4);
  EXPECT_EQ(world.rank() == 0 ? store.most_to_come(4, 100) : 2, 2) << "step 5 stays, set aside";
}

TEST_F(CheckpointStore, SparesTheCheckpointThatItWasToldToTake) {
  save(1, 1);
  Shard shard = make_shard();
  (void)store.restore(path(1) + "/", small_model(), shard.map, shard.subgroups, *shard.tiers,
                      ignore_parameters);
  for (std::int64_t const step : {2, 3, 4}) {
    store.save(meta(step), shard.map, shard.subgroups, *shard.tiers);
  }
  EXPECT_THAT(steps(), ElementsAre(1, 3, 4));
}

TEST_F(CheckpointStore, GoesOnWithAnotherLongestSequence) {
  save(1, 1);
  state::ModelShape longer = small_model();
  longer.max_sequence *= 2;
  Shard shard = make_shard(longer);
  EXPECT_TRUE(
      store.restore_newest(longer, shard.map, shard.subgroups, *shard.tiers, ignore_parameters));
  EXPECT_TRUE(shard.holds(1));
}

TEST_F(CheckpointStore, RefusesAnotherModelInsteadOfFallingBack) {
  save(1, 1);
  state::ModelShape other = small_model();
  other.ffn_hidden = 44;
  EXPECT_THAT(refusal(other),
              AllOf(HasSubstr("model.ffn-hidden: checkpoint 40, run 44"), HasSubstr(path(1))));
}

TEST_F(CheckpointStore, RefusesANewerFormatInsteadOfFallingBack) {
  save(1, 1);
  save(2, 1);
  on_one_rank([&] {
    fs::remove(path(2) + "/master.h5");
    h5::File file = h5::File::create(path(2) + "/master.h5");
    file.set("format_version", std::int64_t{format_version + 1});
    file.close();
  });
  EXPECT_THAT(refusal(small_model()),
              AllOf(HasSubstr(path(2)), HasSubstr("format 4"), HasSubstr("newer offstage")));
}

TEST_F(CheckpointStore, RestoringByPathFallsBackToNothing) {
  save(1, 1);
  save(2, 1);
  on_one_rank([&] { fs::remove(path(2) + "/rank-0000.json"); });
  Shard shard = make_shard();
  auto const message = [&](std::string const& wanted) {
    return message_of<mpi::AgreedError>([&] {
      (void)store.restore(wanted, small_model(), shard.map, shard.subgroups, *shard.tiers,
                          ignore_parameters);
    });
  };
  EXPECT_THAT(message(path(2)), HasSubstr("rank-0000.json"));
  EXPECT_THAT(message(path(7)), HasSubstr("there is no checkpoint " + path(7)));
  EXPECT_THAT(message(directory), HasSubstr("step-000000100"));
}

TEST_F(CheckpointStore, AFailureOfTheRunsOwnTiersIsNotTheCheckpoints) {
  save(1, 1);
  Shard shard = make_shard();
  FailingTiers failing;
  EXPECT_EQ(message_of<mpi::AgreedError>([&] {
              (void)store.restore_newest(small_model(), shard.map, shard.subgroups, failing,
                                         ignore_parameters);
            }),
            "the disk is gone");
}

}  // namespace
}  // namespace offstage::checkpoint
