// What a start does about checkpoints that do not load.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "checkpoint/reader.hpp"
#include "checkpoint/store_fixture.hpp"
#include "platform/h5/file.hpp"

namespace offstage::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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
              AllOf(HasSubstr(path(2)), HasSubstr("format " + std::to_string(format_version + 1)),
                    HasSubstr("newer offstage")));
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
  EXPECT_THAT(message(path(7)),
              AllOf(HasSubstr("checkpoint.resume=" + path(7) + ": there is no such directory"),
                    HasSubstr("such as " + path(2))));
  // Each one is named once, although the directory is the run's own.
  EXPECT_THAT(message(directory), AllOf(HasSubstr("no complete checkpoint, as it has no master.h5"),
                                        HasSubstr("such as " + path(2) + ", " + path(1)),
                                        Not(HasSubstr(path(1) + ", "))));
  EXPECT_THAT(message(path(2) + "/master.h5"), HasSubstr("master.h5: it is no directory"));
}

TEST_F(CheckpointStore, AFailureOfTheRunsOwnTiersIsNotTheCheckpoints) {
  save(1, 1);
  Shard shard = make_shard();
  FailingTiers failing;
  EXPECT_EQ(message_of<mpi::AgreedError>([&] {
              Store* const level = &store;
              (void)Store::restore_newest({&level, 1}, small_model(), shard.map, shard.subgroups,
                                          failing, ignore_parameters);
            }),
            "the disk is gone");
}

}  // namespace
}  // namespace offstage::checkpoint
