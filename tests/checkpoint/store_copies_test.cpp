// Level 3: copies of level 1 on the next node; nodes are lost, copies are unfinished or damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "checkpoint/inspect.hpp"
#include "checkpoint/levels_fixture.hpp"
#include "checkpoint/master.hpp"
#include "checkpoint/node_ring.hpp"
#include "checkpoint/reader.hpp"
#include "platform/failing_calls.hpp"
#include "platform/memory/huge_buffer.hpp"

namespace offstage::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class StoreCopies : public StoreLevels {
 protected:
  static void finish_copies(Store& local, std::int64_t step) {
    for (;;) {
      if (auto const done = local.finish_copies_if_done()) {
        EXPECT_EQ(done->step, step);
        EXPECT_GT(done->bytes, 0);
        break;
      }
    }
    local.finish_removal();
  }
  void save_and_copy(Store& local, std::int64_t step, std::uint64_t seed) {
    save_local(local, step, seed);
    local.begin_copies(step);
    finish_copies(local, step);
  }
  void save_and_copy(std::int64_t step, std::uint64_t seed) {
    save_and_copy(*make_local(true), step, seed);
    world.barrier();
  }
  /// Everything on its storage.
  void lose_node(int rank) {
    on_one_rank([&] { fs::remove_all(fs::path{of_node(rank)}.parent_path()); });
  }
  /// The last one that owns something.
  [[nodiscard]] int last() const { return last_owner(world.size()); }
  [[nodiscard]] int after(int rank) const { return (rank + 1) % world.size(); }
  [[nodiscard]] int before(int rank) const { return (rank + world.size() - 1) % world.size(); }
};

TEST_F(StoreCopies, ANodeHasThoseOfTheOneBefore) {
  save_and_copy(1, 1);
  int const other = before(world.rank());
  EXPECT_THAT(names_of(my_copies() + "/" + step_name(1)),
              UnorderedElementsAre(master_name, rank_file_name(other), manifest_name(other)));
  auto const listed = list(my_copies());
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_EQ(listed[0].level, 3);
  EXPECT_EQ(listed[0].state, Completeness::partial);
  EXPECT_THAT(verify(listed[0]), IsEmpty());
}

TEST_F(StoreCopies, TheOneBeforeStaysUntilTheNextIsCopied) {
  auto const local = make_local(true);
  save_and_copy(*local, 1, 1);
  save_local(*local, 2, 2);
  EXPECT_THAT(names_of(mine()), UnorderedElementsAre(step_name(1), step_name(2)));
  EXPECT_THAT(names_of(my_copies()), ElementsAre(step_name(1)));
  local->begin_copies(2);
  EXPECT_TRUE(local->is_copying());
  finish_copies(*local, 2);
  EXPECT_FALSE(local->is_copying());
  EXPECT_THAT(names_of(mine()), ElementsAre(step_name(2)));
  save_and_copy(*local, 3, 3);
  EXPECT_THAT(names_of(mine()), ElementsAre(step_name(3)));
  local->remove_all();
  EXPECT_THAT(names_of(mine()), IsEmpty());
  EXPECT_THAT(names_of(my_copies()), IsEmpty());
}

TEST_F(StoreCopies, OneThatIsSaidToBeThereIsOnDisk) {
  auto const local = make_local(true);
  save_local(*local, 1, 1);
  std::string const master = my_copies() + "/" + step_name(1) + "/" + master_name;
  int syncs = 0;  // of the directories that got the name of the master, and that of the step
  {
    FailingCalls const calls{
        {.kinds = Call::sync, .times = 0, .name = "level-3-", .before = [&](std::int64_t) {
           syncs += fs::exists(master) ? 1 : 0;
         }}};
    local->begin_copies(1);
    finish_copies(*local, 1);
  }
  EXPECT_EQ(syncs, 2);
}

TEST_F(StoreCopies, OneThatFailsLeavesTheOneBefore) {
  auto const local = make_local(true);
  save_and_copy(*local, 1, 1);
  save_local(*local, 2, 2);
  {
    FailingCalls const calls{{.kinds = Call::write,
                              .error_number = ENOSPC,
                              .times = world.rank() == last() ? INT64_MAX : 0,
                              .name = "level-3-"}};
    EXPECT_THAT(message_of<mpi::AgreedError>([&] {
                  local->begin_copies(2);
                  finish_copies(*local, 2);
                }),
                HasSubstr("No space left on device"));
    local->stop_copies();
  }
  EXPECT_THAT(names_of(my_copies()), ElementsAre(step_name(1)));
  for (std::int64_t const step : {3, 4}) {
    save_local(*local, step, static_cast<std::uint64_t>(step));
    EXPECT_THAT(names_of(mine()), UnorderedElementsAre(step_name(1), step_name(step)));
    EXPECT_THAT(names_of(my_copies()), ElementsAre(step_name(1)));
  }
  world.barrier();
  lose_node(last());
  EXPECT_EQ(restore_newest_level(1), (Restored{1, 1, true}));
}

TEST_F(StoreCopies, OneThatIsWholeStaysBehindARestartFromALaterStep) {
  {
    auto const killed = make_local(true);
    save_and_copy(*killed, 1, 1);
    save_local(*killed, 2, 2);
  }
  auto const local = make_local(true);
  Shard shard = make_shard();
  auto const found = load_newest(*local, shard);
  ASSERT_TRUE(found && found->step == 2);
  save_local(*local, 3, 3);
  EXPECT_THAT(names_of(mine()), UnorderedElementsAre(step_name(1), step_name(3)));
  EXPECT_THAT(names_of(my_copies()), ElementsAre(step_name(1)));
  world.barrier();
  lose_node(last());
  EXPECT_EQ(restore_newest_level(1), (Restored{1, 1, true}));
}

TEST_F(StoreCopies, NoMoreAreThereDuringASaveThanAreCountedForTheirSpace) {
  auto const local = make_local(true);
  save_and_copy(*local, 1, 1);
  save_local(*local, 2, 2);
  local->begin_copies(2);
  local->give_up_copies();  // as the save before a run's end does
  Shard shard = make_shard();
  shard.fill(3);
  local->begin_save(meta(3), shard.map, shard.subgroups, *shard.tiers);
  auto const there = names_of(mine());
  EXPECT_THAT(there, UnorderedElementsAre(step_name(1), step_name(2), step_name(3)));
  EXPECT_EQ(std::ssize(there), most_in_level_1(true, false));
  (void)local->finish_save();
  local->finish_removal();
  EXPECT_THAT(names_of(mine()), UnorderedElementsAre(step_name(1), step_name(3)));
}

TEST_F(StoreCopies, ANodeThatIsLostComesBackFromItsPartner) {
  save(1, 1);
  for (int lost = 0; lost < world.size(); ++lost) {
    save_and_copy(2, 2);
    lose_node(lost);
    EXPECT_EQ(restore_newest_level(2), (Restored{2, 1, true})) << "node " << lost;
    if (world.rank() == lost && lost <= last()) {
      EXPECT_THAT(names_of(mine() + "/" + step_name(2)),
                  UnorderedElementsAre(master_name, rank_file_name(lost), manifest_name(lost)));
    } else if (world.rank() == lost) {
      EXPECT_THAT(names_of(mine() + "/" + step_name(2)), ElementsAre(master_name))
          << "who owns nothing reads nothing";
    }
  }
}

TEST_F(StoreCopies, NeighboursThatAreLostCostWhatIsSinceLevel2) {
  save(1, 1);
  save_and_copy(2, 2);
  lose_node(0);
  lose_node(1);
  EXPECT_EQ(restore_newest_level(1), (Restored{1, 2, true}));
}

TEST_F(StoreCopies, NodesMayBeOthersThanBefore) {
  save_and_copy(2, 2);
  on_one_rank([&] {  // they change places
    fs::path const first = fs::path{of_node(0)}.parent_path();
    fs::path const second = fs::path{of_node(1)}.parent_path();
    fs::rename(first, second.string() + "-kept");
    fs::rename(second, first);
    fs::rename(second.string() + "-kept", second);
  });
  EXPECT_EQ(restore_newest_level(2), (Restored{2, 1, true}));
}

/// Copies a directory again if a file that it has listed has another name when it comes to it.
void copy_while_files_get_their_names(fs::path const& from, fs::path const& to) {
  for (std::error_code error = std::make_error_code(std::errc::no_such_file_or_directory);
       error == std::errc::no_such_file_or_directory;) {
    fs::remove_all(to);
    error.clear();
    fs::copy(from, to, fs::copy_options::recursive, error);
    if (error && error != std::errc::no_such_file_or_directory) {
      throw fs::filesystem_error{"copy", from, to, error};
    }
  }
}

TEST_F(StoreCopies, AnUnfinishedOneNeverCounts) {
  save(1, 1);
  auto const local = make_local(true);
  save_and_copy(*local, 2, 2);
  save_local(*local, 3, 3);
  local->begin_copies(3);
  for (int looks = 0; looks < 20; ++looks) {
    local->look_in();
  }
  // As a kill leaves it: all may have arrived, but nobody has agreed that it has.
  fs::path const node = fs::path{mine()}.parent_path();
  std::string const kept = node.string() + "-kept";
  copy_while_files_get_their_names(node, kept);
  local->give_up_copies();
  EXPECT_FALSE(local->is_copying());
  EXPECT_THAT(names_of(my_copies()), ElementsAre(step_name(2)));
  fs::remove_all(node);
  fs::rename(kept, node);
  EXPECT_THAT(names_of(my_copies()), UnorderedElementsAre(step_name(2), step_name(3)));
  lose_node(last());
  EXPECT_EQ(restore_newest_level(2), (Restored{2, 1, true})) << "the one before is whole";
}

TEST_F(StoreCopies, ADamagedOneIsFound) {
  save(1, 1);
  save_and_copy(2, 2);
  on_one_rank([&] {
    std::string const copy = copies_of_node(after(last())) + "/" + step_name(2);
    flip_bit(copy + "/" + rank_file_name(last()),
             fs::file_size(copy + "/" + rank_file_name(last())) / 2);
    EXPECT_THAT(verify(list(copies_of_node(after(last())))[0]), ::testing::SizeIs(1));
  });
  lose_node(last());
  EXPECT_EQ(restore_newest_level(1), (Restored{1, 2, true}));
}

TEST_F(StoreCopies, AShortenedOneIsNoCopy) {
  save(1, 1);
  save_and_copy(2, 2);
  on_one_rank([&] {
    shorten(copies_of_node(after(last())) + "/" + step_name(2) + "/" + rank_file_name(last()), 1);
  });
  lose_node(last());
  EXPECT_EQ(restore_newest_level(1), (Restored{1, 2, true}));
}

TEST_F(StoreCopies, ThoseOfAnotherSaveOfTheStepAreNeverMixed) {
  save(1, 1);
  save_and_copy(2, 2);
  on_one_rank([&] {
    for (int rank = 0; rank < world.size(); ++rank) {
      fs::rename(copies_of_node(rank), copies_of_node(rank) + "-kept");
      fs::remove_all(of_node(rank));
    }
  });
  save_local(2, 7);
  on_one_rank([&] {
    for (int rank = 0; rank < world.size(); ++rank) {
      fs::rename(copies_of_node(rank) + "-kept", copies_of_node(rank));
    }
  });
  lose_node(last());
  EXPECT_EQ(restore_newest_level(1), (Restored{1, 2, true}));
}

TEST_F(StoreCopies, ARunThatBeginsElsewhereRemovesThem) {
  save_and_copy(5, 5);
  auto const local = make_local(true);
  local->pass_over_after(2);
  local->remove_passed_over();
  EXPECT_THAT(names_of(mine()), IsEmpty());
  EXPECT_THAT(names_of(my_copies()), IsEmpty());
}

TEST_F(StoreCopies, ARunThatMakesNoneRemovesThem) {
  save_and_copy(2, 2);
  EXPECT_EQ(restore_newest_level(2), (Restored{2, 1, true}));
  save_local(3, 3);
  EXPECT_THAT(names_of(mine()), ElementsAre(step_name(3)));
  EXPECT_THAT(names_of(my_copies()), IsEmpty());
}

TEST_F(StoreCopies, OneNodeTakesWhatItHasOfTwo) {
  save_and_copy(2, 2);
  lose_node(last());
  on_one_rank([&] {
    mpi::Communicator const alone = mpi::Communicator::self();
    Store local{mine(), alone, Store::Node{.ranks = self, .copies = my_copies()}};
    Shard shard{small_model(), 1, 0, two_chunks};
    auto const restore = [&] { return load_newest(local, shard); };
    if (world.size() > 2) {
      EXPECT_THAT(message_of<mpi::AgreedError>([&] { (void)restore(); }),
                  HasSubstr(manifest_name(1) + " is missing"));
      return;
    }
    auto const found = restore();
    EXPECT_TRUE(found && found->step == 2 && shard.holds(2));
  });
}

/// Format 5, whose four ranks had chunks dealt otherwise than today: nodes have the files of some,
/// and copies of others'.
TEST_F(StoreCopies, AnOlderDealComesFromItsNodesAndCopies) {
  std::string const name = step_name(2);
  std::string const older = std::string{OFFSTAGE_FORMATS "/format-5/"} + name;
  auto const put = [&](std::string const& level, int node) {
    fs::create_directories(level + "/" + name);
    fs::copy(older + "/" + master_name, level + "/" + name);
    for (int rank = node; rank < 4; rank += world.size()) {
      fs::copy(older + "/" + rank_file_name(rank), level + "/" + name);
      fs::copy(older + "/" + manifest_name(rank), level + "/" + name);
    }
  };
  Meta const stored = read_master(older).meta;
  for (int lost = -1; lost < world.size(); ++lost) {
    on_one_rank([&] {
      for (int node = 0; node < world.size(); ++node) {
        fs::remove_all(fs::path{of_node(node)}.parent_path());
        if (node != lost) {
          put(of_node(node), node);
          put(copies_of_node(node), before(node));
        }
      }
    });
    Shard shard{stored.model, world.size(), world.rank(), two_chunks, stored.state.layout};
    auto const found = load_newest(*make_local(), shard, {stored.model, stored.state});
    ASSERT_TRUE(found) << "node " << lost;
    EXPECT_EQ(found->step, 2);
    Reader reader{older, read_master(older)};
    for (state::Subgroup const& subgroup : shard.subgroups) {
      memory::HugeBuffer const expected{shard.layout.bytes(subgroup.size)};
      reader.read(subgroup.pieces, expected.bytes());
      shard.layout.clear_padding(expected.bytes(), subgroup.size);
      EXPECT_TRUE(std::ranges::equal(shard.tiers->fetch(subgroup.index).bytes(), expected.bytes()))
          << "node " << lost << ", subgroup " << subgroup.index;
    }
  }
}

TEST_F(StoreCopies, NodesStandInARing) {
  NodeRing const ring{world, self};
  EXPECT_EQ(ring.size(), static_cast<std::size_t>(world.size()));
  EXPECT_EQ(ring.partner(), (world.rank() + 1) % world.size());
  mpi::Communicator const together = world.duplicate();
  NodeRing const one{world, together};
  EXPECT_EQ(one.size(), 1U);
  EXPECT_EQ(one.here(), 0U);
  EXPECT_THROW((Store{mine(), world,
                      Store::Node{.ranks = together, .copies = my_copies(), .makes_copies = true}}),
               PreconditionError);
}

}  // namespace
}  // namespace offstage::checkpoint
