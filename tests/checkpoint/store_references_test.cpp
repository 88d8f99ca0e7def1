// Checkpoints that refer to slots of a persistent path.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/directory.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/store_fixture.hpp"
#include "platform/failing_calls.hpp"

namespace offstage::checkpoint {
namespace {

using ::testing::ElementsAre;

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

TEST_F(CheckpointStore, HeadsThatSlotsGetAreOnDiskBeforeTheSaveEnds) {
  Shard shard{small_model(), world.size(), world.rank(), 5 * chunk_elements};
  put_on_persistent_path(shard);
  shard.fill(1);
  if (!shard.subgroups.empty()) {
    shard.tiers->fetch(0).commit();  // the one that stays in host memory: the last may be small
  }
  std::string const extents = path(1) + "/extent-";
  int syncs = 0;
  {
    FailingCalls const calls{
        {.kinds = Call::sync, .times = 0, .name = extents, .before = [&](std::int64_t) {
           ++syncs;
         }}};
    store.save(meta(1), shard.map, shard.subgroups, *shard.tiers);
  }
  std::int64_t largest = chunk_elements;  // as slots are made
  for (state::Subgroup const& subgroup : shard.subgroups) {
    largest = std::max(largest, subgroup.size);
  }
  int smaller = 0;
  for (state::Subgroup const& subgroup : shard.subgroups) {
    bool const is_given = fs::exists(
        path(1) + "/" + extent_file_name(world.rank(), static_cast<std::size_t>(subgroup.index)));
    smaller += is_given && subgroup.size < largest ? 1 : 0;
  }
  EXPECT_EQ(syncs, smaller);
  EXPECT_GT(world.sum(std::int64_t{smaller}), 0);
}

// The sync of a slot is final, though another rank's error may end by itself.
TEST_F(CheckpointStore, ASlotWhoseSyncFailedIsNotGivenAgainWhateverFailedOnOtherRanks) {
  Shard shard = make_shard();
  put_on_persistent_path(shard);
  shard.fill(1);
  std::string const first = path(1) + "/rank-0000.h5";
  bool const syncs = world.rank() == std::min(1, world.size() - 1);
  FailingCalls const failing{{.kinds = syncs ? Call::sync : Call::write,
                              .error_number = EIO,
                              .times = 1,
                              .name = syncs ? std::string_view{"/slot-"} : first}};
  EXPECT_THROW(store.save(meta(1), shard.map, shard.subgroups, *shard.tiers), mpi::AgreedError);
  EXPECT_EQ(failing.failed(), world.rank() < 2 ? 1 : 0);
  EXPECT_THAT(steps(), ::testing::IsEmpty());
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
  EXPECT_TRUE(load_newest(restarted, shard));
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
    std::optional<tiers::GivenExtent> give(tiers::Key key, std::string const& name) override {
      fs::create_directory(obstacle_);
      return real_.give(key, name);
    }
    [[nodiscard]] tiers::Traffic traffic() const override { return {}; }
    [[nodiscard]] Bytes host_bytes() const override { return 0; }

   protected:
    void commit(tiers::Key) override {}
    void discard(tiers::Key, bool) noexcept override {}

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

}  // namespace
}  // namespace offstage::checkpoint
