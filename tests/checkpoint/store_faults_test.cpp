// Saves and restarts on a file system that fails: what is said to be saved loads, and what cannot
// be read at the moment is no damage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checksum.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/patience.hpp"
#include "checkpoint/retention.hpp"
#include "checkpoint/store_fixture.hpp"
#include "platform/failing_calls.hpp"
#include "platform/h5/file.hpp"

namespace offstage::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using StoreFaults = CheckpointStore;

TEST_F(StoreFaults, WhatIsSaidToBeSavedVerifies) {
  Call const kinds = Call::open | Call::write | Call::truncate | Call::sync | Call::rename;
  Shard shard = make_shard();
  std::int64_t failures = 0;
  // Every fourth; tests/sweep has them all.
  for (std::int64_t nth = world.size();; nth += 4) {
    shard.fill(static_cast<std::uint64_t>(nth));
    Store saving{directory, {}, world};
    bool said = false;
    bool failed = false;
    {
      FailingCalls const failing{{.kinds = kinds,
                                  .error_number = ENOSPC,
                                  .first = world.rank() == world.size() - 1 ? nth : INT64_MAX,
                                  .times = 1,
                                  .name = directory}};
      try {
        saving.save(meta(nth), shard.map, shard.subgroups, *shard.tiers);
      } catch (mpi::AgreedError const& error) {
        said = true;
        EXPECT_EQ(error.code(), ExitCode::io) << error.what();
      }
      failed = world.broadcast_value(failing.failed() > 0, world.size() - 1);
    }
    on_one_rank([&] {
      EXPECT_EQ(fs::exists(path(nth)), !said) << "call " << nth;
      if (!said) {
        EXPECT_THAT(verify(list(path(nth)).at(0)), IsEmpty()) << "call " << nth;
      }
    });
    failures += said ? 1 : 0;
    if (!failed) {
      break;
    }
  }
  EXPECT_GT(failures, 3);
}

// So after the eviction of a client of Lustre.
TEST_F(StoreFaults, ASaveIsMadeAgainAfterAnErrorThatPasses) {
  Shard shard = make_shard();
  std::int64_t step = 0;
  for (Call const kind : {Call::open, Call::write, Call::truncate, Call::sync, Call::rename}) {
    for (bool const in_two_parts : {false, true}) {
      shard.fill(static_cast<std::uint64_t>(++step));
      std::string const name = path(step);
      // The first rank's are those of the master, too.
      FailingCalls const failing{{.kinds = kind,
                                  .error_number = ESHUTDOWN,
                                  .first = world.rank() == 0 ? 1 : INT64_MAX,
                                  .times = 1,
                                  .name = name}};
      if (in_two_parts) {
        store.begin_save(meta(step), shard.map, shard.subgroups, *shard.tiers);
        (void)store.finish_save();
      } else {
        store.save(meta(step), shard.map, shard.subgroups, *shard.tiers);
      }
      EXPECT_EQ(world.maximum(failing.failed()), 1);
      on_one_rank([&] { EXPECT_THAT(verify(list(path(step)).at(0)), IsEmpty()); });
    }
  }
  EXPECT_EQ(restore_newest(static_cast<std::uint64_t>(step)), std::pair(step, true));
}

TEST_F(StoreFaults, ASaveIsMadeTwiceAtMost) {
  save(1, 1);
  Shard shard = make_shard();
  shard.fill(2);
  std::string const name = path(2);
  FailingCalls const failing{{.kinds = Call::rename,
                              .error_number = EIO,
                              .first = world.rank() == 0 ? 1 : INT64_MAX,
                              .name = name}};
  EXPECT_THAT(message_of<mpi::AgreedError>(
                  [&] { store.save(meta(2), shard.map, shard.subgroups, *shard.tiers); }),
              HasSubstr("cannot save step 2: cannot rename to"));
  EXPECT_EQ(world.maximum(failing.failed()), 2);
  EXPECT_THAT(steps(), ElementsAre(1));
}

TEST_F(StoreFaults, NothingIsSavedThatIsNotReadBackAsWritten) {
  Shard shard = make_shard();
  shard.fill(1);
  std::string const file = path(1) + "/rank-0000.h5";
  bool is_damaged = false;
  auto const damage = [&](std::int64_t) {
    if (std::exchange(is_damaged, true)) {
      return;
    }
    auto const blocks = ceil_div(shard.layout.bytes(shard.subgroups[0].size), block_bytes);
    flip_bit(file, h5::File::open_read(file).offset("/checksum/0", h5::Type::u64, {blocks}));
  };
  {
    FailingCalls const calls{{.kinds = Call::sync, .times = 0, .name = file, .before = damage}};
    EXPECT_THROW(store.save(meta(1), shard.map, shard.subgroups, *shard.tiers), mpi::AgreedError);
  }
  EXPECT_THAT(steps(), IsEmpty());
}

TEST_F(StoreFaults, AMasterThatIsNotReadBackAsWrittenGetsNoName) {
  Shard shard = make_shard();
  shard.fill(1);
  std::string const file = path(1) + "/" + unfinished_master_name;
  auto const damage = [&](std::int64_t) { flip_bit(file, 3); };  // of HDF5's signature
  {
    FailingCalls const calls{{.kinds = Call::sync, .times = 0, .name = file, .before = damage}};
    EXPECT_THAT(message_of<mpi::AgreedError>(
                    [&] { store.save(meta(1), shard.map, shard.subgroups, *shard.tiers); }),
                HasSubstr("a file that was just written"));
  }
  EXPECT_THAT(steps(), IsEmpty());
}

/// How many of the syncs under `name` that `work` makes on this rank find `state`.
template <class Work, class State>
int syncs(std::string const& name, Work&& work, State&& state) {
  int count = 0;
  FailingCalls const calls{
      {.kinds = Call::sync, .times = 0, .name = name, .before = [&](std::int64_t) {
         count += state() ? 1 : 0;
       }}};
  work();
  return count;
}

// Against a loss of power, of which tests/sweep has some moments only.
TEST_F(StoreFaults, WhatAMasterNamesIsOnDiskBeforeItAndItBeforeTheSaveEnds) {
  Shard shard = make_shard();
  shard.fill(1);
  Store saving{directory, {.keep = 2}, world};
  auto const save_as = [&](std::int64_t step) {
    return [&, step] { saving.save(meta(step), shard.map, shard.subgroups, *shard.tiers); };
  };
  auto const there = [&](std::int64_t step, std::string const& name) {
    return fs::exists(path(step) + "/" + name);
  };
  std::string const manifest = manifest_name(world.rank());
  EXPECT_EQ(syncs(path(1), save_as(1),
                  [&] {
                    return there(1, manifest) && !there(1, unfinished_master_name) &&
                           !there(1, master_name);
                  }),
            2)
      << "the manifest, and the names of both";
  EXPECT_EQ(syncs(directory, save_as(2), [&] { return there(2, master_name); }),
            world.rank() == 0 ? 2 : 0)
      << "the names of the master and of the step";
}

TEST_F(StoreFaults, WhatIsRemovedOrSetAsideIsSoOnDiskBeforeWhatFollows) {
  save(1, 1);
  save(2, 2);
  on_one_rank([&] {
    std::string const list = path(1) + "/" + passed_over_name;
    overwrite(list, "step-000000002\n");
    EXPECT_EQ(syncs(
                  path(1), [&] { remove_lists(directory); }, [&] { return !fs::exists(list); }),
              1);
    EXPECT_EQ(syncs(
                  path(1), [&] { remove_checkpoint(path(1)); },
                  [&] {
                    return !fs::exists(path(1) + "/" + master_name) &&
                           fs::exists(path(1) + "/rank-0000.h5");
                  }),
              1);
    EXPECT_EQ(syncs(
                  directory, [&] { EXPECT_TRUE(set_aside(directory, step_name(2))); },
                  [&] { return !fs::exists(path(2)); }),
              1);
  });
}

/// Fails reads of the newest checkpoint on the last rank, and says how often they did.
struct FailingReads {
  FailingReads(mpi::Communicator const& comm, int error_number, std::int64_t times)
      : calls{{.kinds = Call::open | Call::read,
               .error_number = error_number,
               .first = comm.rank() == comm.size() - 1 ? 1 : INT64_MAX,
               .times = times,
               .name = "step-000000002/"}} {}
  FailingCalls calls;
};

TEST_F(StoreFaults, NoOlderOneIsTakenForTheNewestThatCannotBeLookedAt) {
  save(1, 1);
  save(2, 2);
  on_one_rank([&] {
    {
      FailingCalls const failing{
          {.kinds = Call::size, .error_number = EIO, .name = "step-000000002/"}};
      EXPECT_THROW((void)newest_complete(directory, Warn::no), IoError);
    }
    auto const newest = newest_complete(directory, Warn::no);
    ASSERT_TRUE(newest);
    EXPECT_EQ(newest->meta.step, 2);
  });
}

TEST_F(StoreFaults, AReadThatFailsForAMomentIsTriedAgain) {
  save(1, 1);
  save(2, 2);
  for (int const error_number : {EIO, EMFILE, ESTALE}) {
    FailingReads const failing{world, error_number, 2};
    EXPECT_EQ(restore_newest(2), std::pair(std::int64_t{2}, true));
    EXPECT_EQ(failing.calls.failed(), world.rank() == world.size() - 1 ? 2 : 0);
  }
}

TEST_F(StoreFaults, WhatCannotBeReadIsNotPassedOver) {
  save(1, 1);
  save(2, 2);
  Shard shard = make_shard();
  Store fresh{directory, {}, world};
  {
    FailingReads const failing{world, EIO, INT64_MAX};
    try {
      (void)load_newest(fresh, shard);
      ADD_FAILURE() << "nothing was said";
    } catch (mpi::AgreedError const& error) {
      EXPECT_EQ(error.code(), ExitCode::io);
      EXPECT_THAT(error.what(), HasSubstr("step-000000002/"));
      EXPECT_THAT(error.what(), HasSubstr("Input/output error"));
    }
  }
  EXPECT_EQ(restore_newest(2), std::pair(std::int64_t{2}, true));
}

TEST_F(StoreFaults, VerifyTellsWhatCannotBeReadFromDamage) {
  save(2, 2);
  on_one_rank([&] {
    FailingCalls const failing{
        {.kinds = Call::open | Call::read, .error_number = EIO, .name = "rank-0000.h5"}};
    EXPECT_THROW((void)verify(list(path(2)).at(0)), IoError);
  });
}

TEST(ReadPatiently, ReadsDamageTwice) {
  int reads = 0;
  auto const damaged_once = [&] {
    if (++reads == 1) {
      throw DataError{"a checksum differs"};
    }
    return 7;
  };
  EXPECT_EQ(read_patiently(damaged_once), 7);
  EXPECT_THROW(read_patiently([&] {
                 ++reads;
                 throw DataError{"a checksum differs"};
               }),
               DataError);
  EXPECT_EQ(reads, 4);
}

TEST_F(StoreFaults, OnlySoundCheckpointsCountAsKept) {
  for (std::int64_t const step : {1, 2, 3}) {
    Store own{directory, {.keep = 3}, world};
    Shard shard = make_shard();
    shard.fill(static_cast<std::uint64_t>(step));
    own.save(meta(step), shard.map, shard.subgroups, *shard.tiers);
  }
  // The checksums of step 3 are lost, as by a write that nobody heard of.
  on_one_rank([&] {
    h5::File file = h5::File::open_read_write(path(3) + "/rank-0000.h5");
    h5::Shape const shape = file.shape("/checksum/0");
    std::vector<std::uint64_t> const zeros(static_cast<std::size_t>(h5::elements_of(shape)));
    file.fill<std::uint64_t>("/checksum/0", zeros);
    file.close();
  });
  Shard shard = make_shard();
  Store later{directory, {.keep = 2}, world};
  shard.fill(4);
  later.save(meta(4), shard.map, shard.subgroups, *shard.tiers);
  later.finish_removal();
  EXPECT_THAT(steps(), ElementsAre(2, 3, 4)) << "4 and 2 are kept, 3 is no replacement for 2";
  later.save(meta(5), shard.map, shard.subgroups, *shard.tiers);
  later.finish_removal();
  EXPECT_THAT(steps(), ElementsAre(4, 5));
}

}  // namespace
}  // namespace offstage::checkpoint
