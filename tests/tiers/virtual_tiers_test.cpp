#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/thread.hpp"
#include "tiers/virtual_support.hpp"

namespace offstage::tiers {
namespace {

using aio::Direction;
using aio::Transfer;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Bytes extent = 256 * KiB;

class VirtualTiers : public ::testing::Test, public VirtualFixture {
 protected:
  /// What one pass moves, in extents of 8 KiB.
  struct Moved {
    std::int64_t hits, reads, writes;
    bool operator==(Moved const&) const = default;
  };
  template <class Work>
  static Moved moved(Tiers& tiers, Work const& work) {
    Traffic const before = tiers.traffic();
    work();
    Traffic const after = tiers.traffic();
    return {after.hits - before.hits, (after.read_bytes() - before.read_bytes()) / (8 * KiB),
            (after.write_bytes() - before.write_bytes()) / (8 * KiB)};
  }
  static Moved moved(Tiers& tiers, std::vector<Key> const& order, int before) {
    return moved(tiers, [&] { EXPECT_TRUE(pass(tiers, order, before)); });
  }
  /// Extents of 8 KiB on each path.
  static std::vector<Bytes> extents_on(Tiers const& tiers) {
    std::vector<Bytes> extents = tiers.residence().paths;
    for (Bytes& bytes : extents) {
      bytes /= 8 * KiB;
    }
    return extents;
  }
};

TEST_F(VirtualTiers, CountsWhatItMovesAndHolds) {
  add_path();
  auto const tiers = make({extent, 5000});
  put(*tiers, 0, 1);
  put(*tiers, 1, 1);
  Traffic const before = tiers->traffic();
  EXPECT_EQ(before.write_bytes(), extent + 8192) << "whole blocks of 4096";
  EXPECT_EQ(before.read_bytes(), 0);
  { Lease const lease = tiers->fetch(1); }
  Traffic const after = tiers->traffic();
  EXPECT_EQ(after.read_bytes(), 8192);
  EXPECT_EQ(after.misses, 1);
  EXPECT_EQ(after.fetched_bytes, 5000);
  EXPECT_GT(after.fetch_seconds.count(), 0.0);
  EXPECT_GT(after.flush_seconds.count(), 0.0);
  EXPECT_EQ(tiers->host_bytes(), extent);
}

TEST_F(VirtualTiers, TakesHostMemoryForBuffersAndCacheButNoMoreThanForAll) {
  add_path();
  settings.buffers = 3;
  settings.cached = 4;
  EXPECT_EQ(make(std::vector<Bytes>(10, 5000))->host_bytes(), 7 * 8192);
  EXPECT_EQ(make({5000, 4096, 100})->host_bytes(), 8192 + 4096 + 4096);
  EXPECT_EQ(make({})->host_bytes(), 0);
}

TEST_F(VirtualTiers, MovesExtentsInPiecesOf64MiB) {
  add_path();
  paths[0].engine = {};
  auto const tiers = make({64 * MiB + 5000});
  put(*tiers, 0, 1);
  Lease lease = tiers->fetch(0);
  auto const bytes = lease.mutable_bytes();
  bytes.front() = bytes.back() = std::byte{9};
  lease.commit();
  Lease const again = tiers->fetch(0);
  EXPECT_EQ(again.bytes().back(), std::byte{9});
  EXPECT_TRUE(all(again.bytes().subspan(1, again.bytes().size() - 2), 1));
  EXPECT_EQ(tiers->traffic().paths.at(0).read.transfers, 4);
}

TEST_F(VirtualTiers, AlternatingPassesMoveOnlyWhatDoesNotStay) {
  constexpr Key n = 12;
  add_path();
  for (Evict const evict : {Evict::farthest, Evict::oldest}) {
    for (std::int64_t const cached : {0, 1, 5, 11, 12}) {
      settings.evict = evict;
      settings.cached = cached;
      auto const tiers = make_filled(n);
      for (int round = 0; round < 4; ++round) {
        auto const order = round % 2 == 0 ? descending(n) : ascending(n);
        EXPECT_EQ(moved(*tiers, order, round), (Moved{cached, n - cached, n - cached}))
            << cached << " cached, round " << round;
      }
    }
  }
}

TEST_F(VirtualTiers, AscendingPassesHitWhatFarthestKeepsAndNothingOfOldest) {
  constexpr Key n = 12;
  add_path();
  settings.cached = 5;
  settings.evict = Evict::farthest;
  auto tiers = make_filled(n);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(moved(*tiers, ascending(n), round), (Moved{5, 7, 7}));
  }
  settings.evict = Evict::oldest;
  tiers = make_filled(n);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(moved(*tiers, ascending(n), round), (Moved{0, 12, 12}));
  }
}

TEST_F(VirtualTiers, ThreadsMoveAsLittleAsOne) {
  constexpr Key n = 24;
  add_paths(2);
  settings.cached = 7;
  settings.buffers = 3;
  auto const tiers = make_filled(n);
  for (int round = 0; round < 10; ++round) {
    auto const order = round % 2 == 0 ? descending(n) : ascending(n);
    auto const work = [&] {
      tiers->begin_pass();
      std::atomic<std::size_t> next = 0;
      std::vector<NamedThread> threads;
      for (int t = 0; t < 4; ++t) {
        threads.emplace_back("worker", [&] {
          for (std::size_t i = next++; i < order.size(); i = next++) {
            Lease lease = tiers->fetch(order[i]);
            EXPECT_TRUE(all(lease.bytes(), static_cast<int>(order[i]) + round));
            set(lease, static_cast<int>(order[i]) + round + 1);
            lease.commit();
          }
        });
      }
    };
    EXPECT_EQ(moved(*tiers, work), (Moved{7, n - 7, n - 7})) << "round " << round;
  }
}

TEST_F(VirtualTiers, ReadingChangesNothingInTheCache) {
  add_path();
  settings.cached = 3;
  auto const tiers = make_filled(8);
  auto const read_all = [&] {
    for (Key key = 0; key < 8; ++key) {
      EXPECT_TRUE(all(tiers->fetch(key).bytes(), static_cast<int>(key)));
    }
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(moved(*tiers, read_all), (Moved{3, 5, 0}));
  }
  EXPECT_TRUE(tiers->in_memory(7));
  EXPECT_FALSE(tiers->in_memory(0));
  EXPECT_EQ(tiers->residence().host, 3 * 8 * KiB);
}

TEST_F(VirtualTiers, ALeaseOfACachedExtentIsTheExtentAndNeedsNoBuffer) {
  add_path();
  settings.cached = 2;
  auto const tiers = make_filled(6);  // 4 and 5 stay
  std::byte const* const place = tiers->fetch(5).bytes().data();
  Lease const miss = tiers->fetch(0);
  Lease const first = tiers->fetch(4);
  Lease const second = tiers->fetch(5);
  EXPECT_EQ(second.bytes().data(), place);
}

TEST_F(VirtualTiers, AHitPassesAMissThatWaitsForABuffer) {
  add_path();
  settings.cached = 1;
  auto const tiers = make_filled(4);  // 3 stays
  std::optional<Lease> holds{tiers->fetch(0)};
  std::atomic<bool> fetched = false;
  NamedThread miss{"miss", [&] {
                     EXPECT_TRUE(all(tiers->fetch(1).bytes(), 1));
                     fetched = true;
                   }};
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  EXPECT_TRUE(all(tiers->fetch(3).bytes(), 3));
  EXPECT_FALSE(fetched);
  holds.reset();
  miss.join();
  EXPECT_TRUE(fetched);
}

TEST_F(VirtualTiers, DiscardKeepsTheVersionInStorageAndTearsTheOneInMemory) {
  add_path();
  settings.cached = 1;
  auto const tiers = make_filled(3);  // 2 stays
  for (Key const key : {0, 2}) {
    Lease lease = tiers->fetch(key);
    set(lease, 99);
  }
  EXPECT_TRUE(all(tiers->fetch(0).bytes(), 0));
  EXPECT_THROW((void)tiers->fetch(2), PreconditionError);
  put(*tiers, 2, 5);
  EXPECT_TRUE(all(tiers->fetch(2).bytes(), 5));
  EXPECT_TRUE(all(tiers->fetch(0).bytes(), 0)) << "the torn extent kept its buffer";
}

TEST_F(VirtualTiers, HoldExtentsInProportionToTheRatesAndMigrateWhenTheseChange) {
  constexpr Key n = 75;
  add_path(4e9);
  add_path(2e9);
  add_path(1e9);
  settings.cached = 5;
  auto const tiers = make_filled(n);
  EXPECT_THAT(extents_on(*tiers), ElementsAre(40, 20, 10));
  EXPECT_EQ(moved(*tiers, descending(n), 0), (Moved{5, 70, 70}));
  EXPECT_THAT(extents_on(*tiers), ElementsAre(40, 20, 10));
  settings.paths->at(0)->set_rates(1e9, 1e9);
  settings.paths->at(2)->set_rates(4e9, 4e9);
  EXPECT_EQ(moved(*tiers, ascending(n), 1), (Moved{5, 70, 70})) << "no extra I/O";
  EXPECT_THAT(extents_on(*tiers), ElementsAre(10, 20, 40));
}

TEST_F(VirtualTiers, FixedWeightsMayKeepAPathFree) {
  add_paths(2);
  settings.split = {plan::SplitRule::fixed, {1.0, 0.0}};
  EXPECT_THAT(extents_on(*make_filled(9)), ElementsAre(9, 0));
}

TEST_F(VirtualTiers, TwoShareTheirPathsAndTheNameOfTheirDirectory) {
  add_paths(2);
  auto const state = make_filled(6);
  auto const gradients = make_virtual_tiers(std::vector<Bytes>(6, 4096), settings);
  for (Key key = 0; key < 6; ++key) {
    Lease const outer = state->fetch(key);
    put(*gradients, key, static_cast<int>(10 + key));
  }
  for (Key key = 0; key < 6; ++key) {
    EXPECT_TRUE(all(state->fetch(key).bytes(), static_cast<int>(key)));
    EXPECT_TRUE(all(gradients->fetch(key).bytes(), static_cast<int>(10 + key)));
  }
}

TEST_F(VirtualTiers, LeaveNoNameOnAnyPathAndMakeNoFileIfAllStays) {
  add_paths(2);
  std::atomic<int> written = 0;
  kernel->on_submit = [&](Transfer& transfer) {
    EXPECT_LT(path_of(transfer), 2U);
    ++written;
    return 0;
  };
  auto tiers = make_filled(4);
  EXPECT_EQ(written, 4);
  EXPECT_TRUE(std::filesystem::is_empty(paths[0].directory));
  EXPECT_TRUE(std::filesystem::is_empty(paths[1].directory));
  // A directory of its own in the way would be refused.
  std::filesystem::create_directory(paths[0].directory + "/" + spill);
  std::filesystem::create_directory(paths[0].directory + "/" + spill + "/x");
  EXPECT_THROW((void)make({4096}), IoError);
  settings.cached = 4;
  tiers = make_filled(4);
  EXPECT_EQ(written, 4);
  EXPECT_EQ(tiers->residence().host, 4 * 8 * KiB);
}

TEST_F(VirtualTiers, HaveASecondLeaseWhereThereIsASecondBufferOrAllStays) {
  add_path();
  settings.buffers = 1;
  EXPECT_FALSE(make_filled(3)->fits_beside(0, 1));
  settings.cached = 3;
  EXPECT_TRUE(make_filled(3)->fits_beside(0, 1));
  settings.cached = 0;
  settings.buffers = 2;
  EXPECT_TRUE(make_filled(3)->fits_beside(0, 1));
}

TEST_F(VirtualTiers, RefuseBadSettings) {
  EXPECT_THROW((void)make({4096}), PreconditionError) << "no path";
  add_path();
  EXPECT_THROW((void)make({0}), PreconditionError);
  settings.buffers = 0;
  EXPECT_THROW((void)make({4096}), PreconditionError);
  settings.buffers = 1;
  settings.cached = -1;
  EXPECT_THROW((void)make({4096}), PreconditionError);
  settings.cached = 0;
  paths[0].directory = scratch / "missing";
  EXPECT_THAT(message_of([&] { (void)make({4096}); }),
              AllOf(HasSubstr("tiers.path = " + paths[0].directory), HasSubstr("exist")));
}

TEST_F(VirtualTiers, SayWhatDoesNotFit) {
  add_path();
  // Slots are as large as the largest extent: 16 TiB.
  std::vector<Bytes> sizes(1 << 20, 1);
  sizes[0] = 16 * MiB;
  EXPECT_THAT(message_of([&] { (void)make(sizes); }),
              AllOf(HasSubstr("tiers.path"), HasSubstr("needs"), HasSubstr("is free")));
}

}  // namespace
}  // namespace offstage::tiers
