// Checkpoints that a start passed over are set aside, and no later start goes back to them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "checkpoint/inspect.hpp"
#include "checkpoint/reader.hpp"
#include "checkpoint/store_fixture.hpp"

namespace offstage::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  auto const found = load_newest(restarted, shard);
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
  (void)load_newest(restarted, shard);
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
  (void)load_newest(restarted, shard);
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

TEST_F(CheckpointStore, KeepsTheListUntilTheLastOneOfItIsSetAside) {
  save(8, 8);
  save(9, 9);
  std::unique_ptr<Obstacle> obstacle;
  on_one_rank(
      [&] { obstacle = std::make_unique<Obstacle>(directory + "/passed-over-step-000000008"); });
  Shard shard = make_shard();
  shard.fill(2);
  Store afresh{directory, {}, world};
  afresh.pass_over_after(0);
  afresh.save(meta(2), shard.map, shard.subgroups, *shard.tiers);
  EXPECT_THAT(steps(), ElementsAre(2, 8));
  EXPECT_EQ(restore_newest(2), std::pair(std::int64_t{2}, true));
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

}  // namespace
}  // namespace offstage::checkpoint
