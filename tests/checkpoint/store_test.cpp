#include "checkpoint/store.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/directory.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/store_fixture.hpp"
#include "platform/failing_calls.hpp"

namespace offstage::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(CheckpointStore, NothingThereIsNoError) {
  EXPECT_EQ(restore_newest(1).first, -1);
}

TEST_F(CheckpointStore, RestoresTheBitsAndTheMetaThatWereSaved) {
  SaveStats const stats = save(12, 4);
  EXPECT_EQ(stats.path, path(12));
  Shard shard = make_shard();
  std::int64_t parameters = 0;
  bool equal = true;
  Store fresh{directory, {}, world};
  auto const found =
      load_newest(fresh, shard, small_model(),
                  [&](state::Subgroup const& subgroup, std::span<float const> parameter) {
                    auto const expected = shard.expected(subgroup, 4);
                    parameters += static_cast<std::int64_t>(parameter.size());
                    auto const bytes = std::as_bytes(parameter);
                    equal = equal && std::equal(bytes.begin(), bytes.end(), expected.begin());
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

TEST_F(CheckpointStore, RestoresPlanesThatAreReadInParts) {
  state::ModelShape model = small_model();
  model.vocab = 400'000;
  model.tied_head = true;
  constexpr std::int64_t elements = 2400 * chunk_elements;  // 37.5 MiB in FP32, of one rank
  Shard shard{model, world.size(), world.rank(), elements};
  shard.fill(3);
  Meta of_step = meta(3);
  of_step.model = model;
  (void)store.save(of_step, shard.map, shard.subgroups, *shard.tiers);
  Shard restored{model, world.size(), world.rank(), elements};
  EXPECT_TRUE(load_newest(store, restored, model));
  EXPECT_TRUE(restored.holds(3));
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
    tiers::PathSettings path;
    path.directory = fs::path{directory}.parent_path().string();
    path.read_rate = path.write_rate = 1e9;
    tiers::VirtualSettings settings;
    settings.paths = tiers::make_paths({.paths = {path}});
    settings.spill = "offstage-test-" + std::to_string(world.rank());
    settings.cached = 1;
    shard.tiers = tiers::make_virtual_tiers(shard.sizes(), settings);
  };
  save(1, 3);
  Shard shard = make_shard();
  on_storage(shard);
  EXPECT_TRUE(load_newest(store, shard));
  EXPECT_TRUE(shard.holds(3));
  shard.fill(4);
  store.save(meta(2), shard.map, shard.subgroups, *shard.tiers);
  EXPECT_EQ(restore_newest(4), std::pair(std::int64_t{2}, true));
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
  milestones.finish_removal();
  EXPECT_THAT(steps(), ElementsAre(3, 6, 7, 8));
  milestones.save(meta(9), shard.map, shard.subgroups, *shard.tiers);
  milestones.finish_removal();
  EXPECT_THAT(steps(), ElementsAre(3, 6, 7, 8, 9)) << "one kept for good does not count";
}

// A long run has hundreds, and on a parallel file system each look at one is a message.
TEST_F(CheckpointStore, ASaveHardlyLooksAtWhatIsKeptForGood) {
  constexpr std::int64_t interval = 100, many = 40, most_looks = 4;
  Store kept{directory, {.keep_every = interval}, world};
  Shard shard = make_shard();
  shard.fill(1);
  std::int64_t step = interval * many;
  auto const looks = [&] {
    std::atomic<std::int64_t> count{};
    FailingCalls const none{{.kinds = Call::size,
                             .first = std::numeric_limits<std::int64_t>::max(),
                             .name = "/step-",
                             .before = [&](std::int64_t) { ++count; }}};
    (void)kept.save(meta(++step), shard.map, shard.subgroups, *shard.tiers);
    kept.finish_removal();
    return count.load();
  };
  for (int i = 0; i < 3; ++i) {
    (void)looks();
  }
  std::int64_t const few = looks();
  on_one_rank([&] {
    for (std::int64_t i = 1; i <= many; ++i) {
      fs::create_directory(path(interval * i));
      write_text(path(interval * i) + "/" + master_name, "");
    }
  });
  EXPECT_LE(looks(), few + most_looks * many);
}

TEST_F(CheckpointStore, KeepsWhatEarlierStartsKeepForGood) {
  Shard shard = make_shard();
  shard.fill(1);
  auto const saved = [&](Store& by, std::int64_t step, std::string const& configuration) {
    Meta made = meta(step);
    made.configuration = configuration;
    by.save(made, shard.map, shard.subgroups, *shard.tiers);
    by.finish_removal();
  };
  Store milestones{directory, {.keep = 2, .keep_every = 3}, world};
  for (std::int64_t step = 1; step <= 7; ++step) {
    bool const is_best = step == 5;
    milestones.keep_best(is_best ? 5 : 2);
    saved(milestones, step,
          fmt::format("checkpoint.keep-every=3\ncheckpoint.keep-best=on\nbest-validation.step={}\n",
                      step < 5 ? 2 : 5));
  }
  milestones.keep_best(5);
  EXPECT_THAT(steps(), ElementsAre(2, 3, 5, 6, 7));
  Store later{directory, {.keep = 1}, world};
  later.keep_what_was_kept(7);
  EXPECT_EQ(later.most_to_come(7, 20), 1) << "one that is written, beside one of steps 2 and 7";
  saved(later, 8, "");
  saved(later, 9, "");
  EXPECT_THAT(steps(), ElementsAre(3, 5, 6, 9)) << "5 is the best of that start, and 2 was before";
  Store with_best{directory, {.keep = 1, .keep_every = 2}, world};
  with_best.keep_what_was_kept(9);
  with_best.keep_best(9);
  saved(with_best, 10, "checkpoint.keep-every=2\n");
  saved(with_best, 11, "");
  EXPECT_THAT(steps(), ElementsAre(3, 6, 9, 10, 11));
  Store earlier{directory, {.keep = 1}, world};
  earlier.keep_what_was_kept(3);
  saved(earlier, 4, "");
  EXPECT_THAT(steps(), ElementsAre(3, 4)) << "what comes after the step is of another branch";
}

TEST_F(CheckpointStore, RemovesAnIncompleteOlderCheckpointButNoUnreadableOne) {
  save(1, 1);
  on_one_rank([&] {
    fs::remove(path(1) + "/rank-0000.h5");
    write_checkpoint(directory, 2, 1, two_chunks, 1);
    overwrite(path(2) + "/master.h5", "garbage, or a format of the future");
    fs::create_directory(path(5));
    overwrite(path(5) + "/rank-0000.h5", "of a save that another run has begun");
  });
  save(3, 1);
  EXPECT_THAT(steps(), ElementsAre(2, 3, 5));
}

TEST_F(CheckpointStore, KeepsAnOlderOneInThePlaceOfOneThatIsDamaged) {
  save(1, 1);
  save(2, 2);
  on_one_rank([&] {
    std::string const manifest = path(2) + "/" + manifest_name(0);
    flip_bit(manifest, static_cast<std::int64_t>(fs::file_size(manifest)) / 2);
  });
  Shard shard = make_shard();
  shard.fill(3);
  Store later{directory, {.keep = 2}, world};
  later.save(meta(3), shard.map, shard.subgroups, *shard.tiers);
  later.finish_removal();
  EXPECT_THAT(steps(), ElementsAre(1, 2, 3));
}

TEST_F(CheckpointStore, SavesNoStepTwice) {
  save(1, 1);
  EXPECT_GT(world.sum(save(2, 2).bytes), 0);
  EXPECT_EQ(world.sum(save(2, 2).bytes), 0);
  on_one_rank([&] { fs::remove(path(2) + "/rank-0000.h5"); });
  EXPECT_GT(world.sum(save(2, 2).bytes), 0) << "it lacks a file now";
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
    EXPECT_THAT(error.what(),
                AllOf(StartsWith("checkpoint.dir=" + inside + ": cannot save step 1"),
                      HasSubstr("/file: Not a directory"), HasSubstr("correct the error")));
  }
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
  store.finish_removal();
  EXPECT_THAT(steps(), ElementsAre(1, 3, 4));
  Store anew{directory, {}, world};
  anew.spare(path(1));
  for (std::int64_t const step : {5, 6, 7}) {
    anew.save(meta(step), shard.map, shard.subgroups, *shard.tiers);
  }
  anew.finish_removal();
  EXPECT_THAT(steps(), ElementsAre(1, 6, 7));
}

TEST_F(CheckpointStore, TheBestDoesNotCountEvenIfItIsTheNewest) {
  Shard shard = make_shard();
  shard.fill(1);
  for (std::int64_t const step : {1, 2, 3}) {
    store.keep_best(step == 3 ? 3 : -1);
    store.save(meta(step), shard.map, shard.subgroups, *shard.tiers);
  }
  store.finish_removal();
  EXPECT_THAT(steps(), ElementsAre(1, 2, 3));
}

TEST_F(CheckpointStore, GoesOnWithAnotherLongestSequence) {
  save(1, 1);
  state::ModelShape longer = small_model();
  longer.max_sequence *= 2;
  Shard shard = make_shard(longer);
  EXPECT_TRUE(load_newest(store, shard, longer));
  EXPECT_TRUE(shard.holds(1));
}

}  // namespace
}  // namespace offstage::checkpoint
