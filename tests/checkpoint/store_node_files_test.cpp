// Files that the ranks of a node write together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/gated_tiers.hpp"
#include "checkpoint/master.hpp"
#include "checkpoint/store_fixture.hpp"
#include "platform/h5/file.hpp"

namespace offstage::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

/// Tiers that fail before anything has its place.
class FailingShares final : public tiers::Tiers {
 public:
  tiers::Lease fetch(tiers::Key) override { throw IoError{"the disk is gone"}; }
  tiers::Lease create(tiers::Key) override { throw IoError{"the disk is gone"}; }
  std::optional<tiers::GivenExtent> give(tiers::Key, std::string const&) override {
    throw IoError{"the disk is gone"};
  }
  [[nodiscard]] tiers::Traffic traffic() const override { return {}; }
  [[nodiscard]] Bytes host_bytes() const override { return 0; }

 protected:
  void commit(tiers::Key) override {}
  void discard(tiers::Key, bool) noexcept override {}
};

/// Tiers that fail before a save begins its file.
class FailingHold final : public tiers::Tiers {
 public:
  tiers::Lease fetch(tiers::Key) override { throw IoError{"never asked"}; }
  tiers::Lease create(tiers::Key) override { throw IoError{"never asked"}; }
  void hold() override { throw IoError{"the disk is gone"}; }
  [[nodiscard]] tiers::Traffic traffic() const override { return {}; }
  [[nodiscard]] Bytes host_bytes() const override { return 0; }

 protected:
  void commit(tiers::Key) override {}
  void discard(tiers::Key, bool) noexcept override {}
};

class NodeFiles : public CheckpointStore {
 protected:
  void use(mpi::Communicator const& of_node) {
    store.set_node_files(of_node, std::ssize(make_shard().subgroups));
  }
  [[nodiscard]] std::vector<std::string> names(std::int64_t step) const {
    std::vector<std::string> found = names_of(path(step));
    std::ranges::sort(found);
    return found;
  }
  /// Every tensor of every plane as the master of a step shows it.
  [[nodiscard]] static std::vector<std::vector<float>> shown(std::string const& step) {
    h5::File const master = h5::File::open_read(step + "/" + master_name);
    std::vector<std::vector<float>> values;
    for (state::LayerLayout const& layer : state::layers_of(small_model())) {
      for (state::TensorLayout const& tensor : layer.tensors) {
        for (char const* const plane : {"parameter", "momentum", "variance"}) {
          h5::Shape shape{tensor.rows};
          if (tensor.columns > 0) {
            shape.push_back(tensor.columns);
          }
          values.push_back(master.read_mapped(std::string{"/"} + plane + "/" + tensor.name, shape));
        }
      }
    }
    return values;
  }

  mpi::Communicator node = world.split_by_node();
};

TEST_F(NodeFiles, HaveWhatTheFilesOfRanksHave) {
  save(1, 7);
  use(node);
  save(2, 7);
  on_one_rank([&] {
    std::vector<std::string> expected{"master.h5", node_file_name(0)};
    for (int rank = 0; rank < world.size(); ++rank) {
      expected.push_back(manifest_name(rank));
    }
    EXPECT_THAT(names(2), ::testing::UnorderedElementsAreArray(expected));
    EXPECT_EQ(read_master(path(1)).format, format_of_rank_files);
    EXPECT_EQ(read_master(path(2)).format, format_of_node_files);
    EXPECT_THAT(verify(list(path(2)).at(0)), IsEmpty());
    EXPECT_THAT(compare(list(path(1)).at(0), list(path(2)).at(0)), IsEmpty());
    EXPECT_EQ(shown(path(1)), shown(path(2))) << "as others read it";
    Bytes bytes = 0;
    for (std::string const& name : names(2)) {
      bytes += static_cast<Bytes>(fs::file_size(path(2) + "/" + name));
    }
    EXPECT_EQ(list(path(2)).at(0).bytes, bytes) << "each file counts once";
  });
  EXPECT_EQ(restore_newest(7), std::pair(std::int64_t{2}, true));
}

TEST_F(NodeFiles, AreReadByAnyNumberOfRanks) {
  use(node);
  save(3, 8);
  on_one_rank([&] {
    mpi::Communicator const self = mpi::Communicator::self();
    Shard alone{small_model(), 1, 0, 5 * chunk_elements};
    (void)Store(directory, {}, self)
        .restore(path(3), small_model(), alone.map, alone.subgroups, *alone.tiers,
                 ignore_parameters);
    EXPECT_TRUE(alone.holds(8));
  });
}

TEST_F(NodeFiles, AreOneForEachNode) {
  mpi::Communicator const self = mpi::Communicator::self();
  use(self);
  save(1, 3);
  on_one_rank([&] {
    for (int rank = 0; rank < world.size(); ++rank) {
      EXPECT_THAT(names(1), IsSupersetOf({node_file_name(rank), manifest_name(rank)}));
    }
    EXPECT_THAT(verify(list(path(1)).at(0)), IsEmpty());
  });
  EXPECT_EQ(restore_newest(3), std::pair(std::int64_t{1}, true));
  save(2, 4);
  save(3, 5);
  on_one_rank([&] { EXPECT_FALSE(fs::exists(path(1))) << "all of it was removed"; });
}

TEST_F(NodeFiles, HaveNoRoomForWhatEntersByReference) {
  use(node);
  {
    Shard shard = make_shard();
    put_on_persistent_path(shard);
    shard.fill(6);
    auto const stats = store.save(meta(1), shard.map, shard.subgroups, *shard.tiers);
    EXPECT_GT(stats.referred, 0);
    Bytes const copied = world.sum(stats.bytes);
    on_one_rank([&] {
      EXPECT_LT(static_cast<Bytes>(fs::file_size(path(1) + "/" + node_file_name(0))),
                copied + 128 * KiB);
      EXPECT_THAT(verify(list(path(1)).at(0)), IsEmpty());
    });
  }
  EXPECT_EQ(restore_newest(6), std::pair(std::int64_t{1}, true));
}

TEST_F(NodeFiles, FailOnAllRanksWithTheCauseOfOne) {
  use(node);
  store.set_rate({.bytes_per_second = 1e12});  // so that saves hold
  save(1, 1);
  Shard shard = make_shard();
  shard.fill(2);
  for (int const bad : {0, last_owner(world.size())}) {
    FailingTiers late;
    FailingShares early;
    FailingHold earliest;
    for (tiers::Tiers* const failing :
         {static_cast<tiers::Tiers*>(&earliest), static_cast<tiers::Tiers*>(&early),
          static_cast<tiers::Tiers*>(&late)}) {
      tiers::Tiers& used = world.rank() == bad ? *failing : *shard.tiers;
      store.begin_save(meta(2), shard.map, shard.subgroups, used);
      EXPECT_THAT(message_of<mpi::AgreedError>([&] { (void)store.finish_save(); }),
                  HasSubstr("cannot save step 2: the disk is gone"));
      EXPECT_THAT(steps(), ElementsAre(1));
    }
  }
  EXPECT_EQ(restore_newest(1), std::pair(std::int64_t{1}, true));
  save(2, 2);
  EXPECT_EQ(restore_newest(2), std::pair(std::int64_t{2}, true));
}

TEST_F(NodeFiles, AreMissedAndFoundShort) {
  use(node);
  save(1, 1);
  save(2, 2);
  on_one_rank([&] {
    fs::resize_file(path(2) + "/" + node_file_name(0), 100);
    EXPECT_THAT(list(path(2)).at(0).problem, HasSubstr("node-0000.h5 has 100 bytes, expected"));
  });
  EXPECT_EQ(restore_newest(1), std::pair(std::int64_t{1}, true));
  on_one_rank([&] {
    fs::remove(path(1) + "/" + node_file_name(0));
    EXPECT_THAT(list(path(1)).at(0).problem, HasSubstr("node-0000.h5 is missing"));
  });
  EXPECT_THAT(refusal(small_model()), HasSubstr("no checkpoint in"));
}

}  // namespace
}  // namespace offstage::checkpoint
