// Level 1, each rank a node of its own with a directory of its own, beside level 2 that all see.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/inspect.hpp"
#include "checkpoint/levels_fixture.hpp"
#include "checkpoint/local_directory.hpp"
#include "checkpoint/replacement.hpp"
#include "platform/aio/file.hpp"

namespace offstage::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(StoreLevels, ANodeHasItsOwnRanksFilesAndAMasterOfAll) {
  save_local(1, 1);
  EXPECT_THAT(names_of(mine() + "/" + step_name(1)),
              ::testing::UnorderedElementsAre(master_name, rank_file_name(world.rank()),
                                              manifest_name(world.rank())));
  Inspection const found = inspect(mine() + "/" + step_name(1));
  EXPECT_EQ(std::ssize(found.master.ranks), world.size());
  EXPECT_EQ(found.state, world.size() == 1 ? Completeness::complete : Completeness::partial);
  auto const listed = list(mine());
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_EQ(listed[0].level, 1);
  EXPECT_THAT(verify(listed[0]), IsEmpty());
}

TEST_F(StoreLevels, TheNewestOfBothLevelsIsTaken) {
  save(1, 1);
  save_local(2, 2);
  EXPECT_EQ(restore_newest_level(2), (Restored{2, 1, true}));
  save(3, 3);
  EXPECT_EQ(restore_newest_level(3), (Restored{3, 2, true}));
}

TEST_F(StoreLevels, OfOneStepTheNearerOneIsTaken) {
  save(2, 2);
  save_local(2, 2);
  EXPECT_EQ(restore_newest_level(2), (Restored{2, 1, true}));
}

TEST_F(StoreLevels, ASaveLeavesNoEarlierOne) {
  auto const local = make_local();
  for (std::int64_t const step : {1, 2, 3}) {
    save_local(*local, step, 1);
    EXPECT_THAT(names_of(mine()), ElementsAre(step_name(step)));
  }
  local->remove_all();
  EXPECT_THAT(names_of(mine()), IsEmpty());
}

// A run saves level 1 every minute for weeks. The long path makes what stays of a save stand out.
TEST_F(StoreLevels, NothingOfASaveStaysInMemoryOnceItsCheckpointIsGone) {
  std::string deep = mine();
  for (int i = 0; i < 10; ++i) {
    deep += "/" + std::string(200, 'x');
  }
  fs::create_directories(deep);
  Store local{deep, world, Store::Node{.ranks = self, .copies = my_copies()}};
  Shard shard = make_shard();
  shard.fill(1);
  std::int64_t step = 0;
  auto const grown_by = [&](int saves) {
    auto const before = static_cast<std::int64_t>(mallinfo2().uordblks);
    for (int i = 0; i < saves; ++i) {
      (void)local.save(meta(++step), shard.map, shard.subgroups, *shard.tiers);
    }
    local.finish_removal();
    return static_cast<std::int64_t>(mallinfo2().uordblks) - before;
  };
  (void)grown_by(4);
  EXPECT_LT(grown_by(12), 12 * std::ssize(deep) / 2);
}

TEST_F(StoreLevels, NoMoreAreThereDuringASaveThanAreCountedForTheirSpace) {
  save_local(2, 2);
  fs::create_directories(mine() + "/" + step_name(1));  // of saves that were killed
  fs::create_directories(mine() + "/" + step_name(3));
  auto const local = make_local();
  Shard shard = make_shard();
  ASSERT_TRUE(load_newest(*local, shard));
  auto const during = [&](std::int64_t step) {
    shard.fill(static_cast<std::uint64_t>(step));
    local->begin_save(meta(step), shard.map, shard.subgroups, *shard.tiers);
    auto const there = names_of(mine());
    (void)local->finish_save();
    local->finish_removal();
    EXPECT_LE(std::ssize(there), most_in_level_1(false, false));
    return there;
  };
  EXPECT_THAT(during(4), ::testing::UnorderedElementsAre(step_name(2), step_name(4)));
  EXPECT_THAT(during(5), ::testing::UnorderedElementsAre(step_name(4), step_name(5)));
}

TEST_F(StoreLevels, AllFallBackWhereOneNodeHasLostItsPart) {
  save(1, 1);
  save_local(2, 2);
  on_one_rank([&] { fs::remove_all(of_node(last_owner(world.size()))); });
  EXPECT_EQ(restore_newest_level(1), (Restored{1, 2, true}));
}

TEST_F(StoreLevels, AllFallBackFromDamageOnOneNode) {
  save(1, 1);
  save_local(2, 2);
  on_one_rank([&] {
    int const last = last_owner(world.size());
    shorten(of_node(last) + "/" + step_name(2) + "/" + rank_file_name(last), 1);
  });
  EXPECT_EQ(restore_newest_level(1), (Restored{1, 2, true}));
}

TEST_F(StoreLevels, PartsOfDifferentSavesAreNeverMixed) {
  save(1, 1);
  save_local(2, 2);
  on_one_rank([&] { fs::rename(of_node(0), of_node(0) + "-kept"); });
  save_local(2, 3);
  on_one_rank([&] {
    if (world.size() > 1) {
      fs::remove_all(of_node(0));
      fs::rename(of_node(0) + "-kept", of_node(0));
    }
  });
  EXPECT_EQ(restore_newest_level(world.size() > 1 ? 1 : 3),
            world.size() > 1 ? (Restored{1, 2, true}) : (Restored{2, 1, true}));
}

TEST_F(StoreLevels, WhatWasPassedOverIsGoneBeforeTheNextSaveIsComplete) {
  save_local(5, 5);
  auto const local = make_local();
  local->pass_over_after(2);
  EXPECT_TRUE(local->has_passed_over());
  local->remove_passed_over();
  EXPECT_FALSE(local->has_passed_over());
  EXPECT_THAT(names_of(mine()), IsEmpty());
}

TEST_F(StoreLevels, WhatCouldNotBeReadAtTheStartIsGoneBeforeTheNextSaveIsComplete) {
  save(1, 1);
  save_local(5, 5);
  std::string const obstacle = mine() + "/" + replaced_name(5);
  fs::create_directory_symlink(directory, obstacle);
  auto const local = make_local();
  Store global{directory, {}, world};
  Shard shard = make_shard();
  std::array<Store*, 2> const levels{local.get(), &global};
  auto const found = Store::restore_newest(levels, small_model(), shard.map, shard.subgroups,
                                           *shard.tiers, ignore_parameters);
  EXPECT_EQ(found->meta.step, 1);
  fs::remove(obstacle);
  local->remove_passed_over();
  EXPECT_THAT(names_of(mine()), IsEmpty());
}

TEST_F(StoreLevels, ASaveOfAStepThatWasPassedOverTakesItsPlace) {
  save_local(2, 2);
  auto const local = make_local();
  local->pass_over_after(1);
  save_local(*local, 2, 7);
  EXPECT_THAT(names_of(mine()), ElementsAre(step_name(2)));
  EXPECT_EQ(restore_newest_level(7), (Restored{2, 1, true}));
}

TEST_F(StoreLevels, OneThatWasNamedStays) {
  save_local(5, 5);
  auto const local = make_local();
  EXPECT_TRUE(local->has(mine() + "/" + step_name(5)));
  EXPECT_FALSE(local->has(path(5)));
  Shard shard = make_shard();
  (void)local->restore(mine() + "/" + step_name(5), small_model(), shard.map, shard.subgroups,
                       *shard.tiers, ignore_parameters);
  local->pass_over_after(5);
  save_local(*local, 6, 6);
  EXPECT_THAT(names_of(mine()), ::testing::UnorderedElementsAre(step_name(5), step_name(6)));
}

TEST_F(StoreLevels, ARunKnowsItsOwnDirectory) {
  on_one_rank([&] {
    aio::make_directory(directory);
    EXPECT_FALSE(read_local_directory(directory));
    auto const made = choose_local_directory(directory, "/local");
    EXPECT_TRUE(is_local_name(made.name)) << made.name;
    EXPECT_FALSE(read_local_directory(directory)) << "not before the run begins";
    record_local_directory(directory, made);
    EXPECT_EQ(read_local_directory(directory), made);
    EXPECT_EQ(choose_local_directory(directory, "/local"), made);
    EXPECT_EQ(level_of(made.path() + "/step-000000001/"), 1);
    EXPECT_EQ(level_of(directory + "/step-000000001"), 2);
    auto with_starts = made;
    add_start(with_starts.starts, {17, 0});
    add_start(with_starts.starts, {~std::uint64_t{0}, 4});
    record_local_directory(directory, with_starts);
    EXPECT_EQ(read_local_directory(directory), with_starts);
    record_local_directory(directory, made);
    auto const other = choose_local_directory(directory, "/elsewhere");
    EXPECT_NE(other.name, made.name);
    EXPECT_EQ(read_local_directory(directory), made) << "a name that was mistyped loses nothing";
    record_local_directory(directory, other);
    std::string const copy = directory + "-copy";
    aio::make_directory(copy);
    fs::copy_file(local_record(directory), local_record(copy));
    EXPECT_NE(choose_local_directory(copy, "/elsewhere").name, other.name);
    EXPECT_EQ(choose_local_directory(directory, "/elsewhere"), other);
    flip_bit(local_record(directory), 12);
    EXPECT_THAT(message_of<DataError>([&] { (void)read_local_directory(directory); }),
                AllOf(HasSubstr(local_record(directory)), HasSubstr("damaged")));
    EXPECT_NE(choose_local_directory(directory, "/elsewhere"), other);
    forget_local_directory(directory);
    EXPECT_FALSE(read_local_directory(directory));
  });
}

TEST(Starts, WhatALaterStartDidNotGoOnFromIsOfAnotherBranch) {
  std::vector<Start> starts;
  EXPECT_TRUE(is_in_history(starts, 5, 100)) << "of a program that recorded none";
  add_start(starts, {1, 0});
  add_start(starts, {2, 4});
  EXPECT_TRUE(is_in_history(starts, 2, 100));
  EXPECT_TRUE(is_in_history(starts, 1, 4)) << "the second start began there";
  EXPECT_FALSE(is_in_history(starts, 1, 5));
  EXPECT_FALSE(is_in_history(starts, 9, 1)) << "older than all";
  add_start(starts, {3, 4});
  add_start(starts, {4, 7});
  EXPECT_TRUE(is_in_history(starts, 3, 7));
  EXPECT_FALSE(is_in_history(starts, 2, 5));
  add_start(starts, {5, 4});  // 4 began at what is no more
  EXPECT_EQ(starts, (std::vector<Start>{{1, 0}, {2, 4}, {3, 4}, {5, 4}}));
  EXPECT_FALSE(is_in_history(starts, 4, 8));
  for (std::uint64_t id = 6; id < 1000; ++id) {
    add_start(starts, {id, 4});
  }
  EXPECT_LT(starts.size(), 100);
  EXPECT_TRUE(is_in_history(starts, 1, 4)) << "left out, and older than all";
}

}  // namespace
}  // namespace offstage::checkpoint
