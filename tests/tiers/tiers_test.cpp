#include "tiers/tiers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/thread.hpp"
#include "device/device.hpp"
#include "host_tiers.hpp"
#include "tiers/device_tiers.hpp"
#include "tiers/virtual_support.hpp"

namespace offstage::tiers {
namespace {

constexpr Bytes extent = 100 * KiB + 12;  // not a multiple of the alignment

/// Where the extents are.
struct Storage {
  int paths;
  std::int64_t cached;
  std::size_t resident = 0;  ///< so many of the last ones are in device memory
};

/// What every kind of tiers promises: three keys, two buffers.
class AnyTiers : public ::testing::TestWithParam<Storage>, public VirtualFixture {
 protected:
  AnyTiers() {
    add_paths(GetParam().paths);
    tiers = make({extent, extent, 20 * KiB}, 2);
  }

  std::unique_ptr<Tiers> make(std::vector<Bytes> sizes, int buffers) {
    std::size_t const resident = std::min(GetParam().resident, sizes.size());
    std::vector<Bytes> const in_device{sizes.end() - static_cast<std::ptrdiff_t>(resident),
                                       sizes.end()};
    sizes.resize(sizes.size() - resident);
    auto rest = make_rest(sizes, buffers);
    if (GetParam().resident == 0) {
      return rest;
    }
    return std::make_unique<DeviceTiers>(*device, std::ssize(sizes), in_device, std::move(rest));
  }
  std::unique_ptr<Tiers> make_rest(std::vector<Bytes> const& sizes, int buffers) {
    if (GetParam().paths == 0) {
      return make_host_tiers(sizes);
    }
    settings.buffers = buffers;
    settings.cached = GetParam().cached;
    return VirtualFixture::make(sizes);
  }

  std::unique_ptr<device::Device> device =
      device::make_host_device(0, {.host_to_device = 10e9, .device_to_host = 10e9});
  std::unique_ptr<Tiers> tiers;
};

TEST_P(AnyTiers, CommitKeepsWhatWasWritten) {
  {
    Lease lease = tiers->create(1);
    EXPECT_EQ(lease.key(), 1);
    EXPECT_EQ(std::ssize(lease.bytes()), extent);
    set(lease, 7);
    lease.commit();
  }
  EXPECT_TRUE(all(tiers->fetch(1).bytes(), 7));
}

TEST_P(AnyTiers, HasTheSizeOfEachKey) {
  put(*tiers, 0, 1);
  put(*tiers, 2, 2);
  EXPECT_EQ(std::ssize(tiers->fetch(2).bytes()), 20 * KiB);
  EXPECT_TRUE(all(tiers->fetch(2).bytes(), 2));
  EXPECT_TRUE(all(tiers->fetch(0).bytes(), 1));
}

TEST_P(AnyTiers, CommitMakesANewVersion) {
  put(*tiers, 0, 1);
  for (int value = 2; value < 20; ++value) {
    Lease lease = tiers->fetch(0);
    ASSERT_TRUE(all(lease.bytes(), value - 1));
    set(lease, value);
    lease.commit();
  }
  EXPECT_TRUE(all(tiers->fetch(0).bytes(), 19));
}

TEST_P(AnyTiers, CreateAgainMakesANewVersion) {
  put(*tiers, 0, 5);
  put(*tiers, 1, 5);
  put(*tiers, 0, 6);
  EXPECT_TRUE(all(tiers->fetch(0).bytes(), 6));
  EXPECT_TRUE(all(tiers->fetch(1).bytes(), 5));
}

TEST_P(AnyTiers, CreateWithoutATouchKeepsTheVersionBefore) {
  put(*tiers, 0, 5);
  { Lease const dropped = tiers->create(0); }
  EXPECT_TRUE(all(tiers->fetch(0).bytes(), 5));
}

TEST_P(AnyTiers, ReadingALeaseAndDroppingItChangesNothing) {
  put(*tiers, 0, 3);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(all(tiers->fetch(0).bytes(), 3));
  }
}

TEST_P(AnyTiers, FetchBeforeCreateIsABug) {
  EXPECT_THROW((void)tiers->fetch(0), PreconditionError);
  { Lease const dropped = tiers->create(0); }
  EXPECT_THROW((void)tiers->fetch(0), PreconditionError);
  put(*tiers, 0, 1);  // and the failures left nothing taken
  EXPECT_TRUE(all(tiers->fetch(0).bytes(), 1));
}

TEST_P(AnyTiers, UnknownKeysAreABug) {
  EXPECT_THROW((void)tiers->fetch(-1), PreconditionError);
  EXPECT_THROW((void)tiers->fetch(3), PreconditionError);
  EXPECT_THROW((void)tiers->create(3), PreconditionError);
}

TEST_P(AnyTiers, AMovedLeaseIsTheLease) {
  Lease first = tiers->create(0);
  set(first, 4);
  Lease second{std::move(first)};
  EXPECT_TRUE(first.bytes().empty());
  EXPECT_THROW(first.commit(), PreconditionError);
  second.commit();
  EXPECT_TRUE(all(tiers->fetch(0).bytes(), 4));
}

TEST_P(AnyTiers, ALeaseEndsOnce) {
  Lease lease = tiers->create(0);
  lease.commit();
  EXPECT_TRUE(lease.bytes().empty());
  EXPECT_THROW(lease.commit(), PreconditionError);
  EXPECT_THROW(Lease{}.commit(), PreconditionError);
}

TEST_P(AnyTiers, ASecondFetchOfAKeyWaitsForTheFirst) {
  put(*tiers, 0, 1);
  std::optional<Lease> first{tiers->fetch(0)};
  std::atomic<bool> seen_new = false;
  NamedThread second{"second", [&] { seen_new = all(tiers->fetch(0).bytes(), 2); }};
  set(*first, 2);
  first->commit();
  first.reset();
  second.join();
  EXPECT_TRUE(seen_new);
}

TEST_P(AnyTiers, AnyScheduleOfThreadsAddsUp) {
  constexpr int keys = 5;
  constexpr int threads = 4;
  constexpr int rounds = 40;
  for (int const buffers : {1, 2, 3}) {
    auto const many = make(std::vector<Bytes>(keys, 8 * KiB), buffers);
    for (Key key = 0; key < keys; ++key) {
      put(*many, key, 0);
    }
    {
      std::vector<NamedThread> pool;
      for (unsigned t = 0; t < threads; ++t) {
        pool.emplace_back("adder", [&, t] {
          std::mt19937 generator{t};
          for (int i = 0; i < rounds * keys; ++i) {
            Lease lease = many->fetch((i + static_cast<int>(t)) % keys);
            // Half of the leases end without a change.
            if (generator() % 2 == 0) {
              std::this_thread::yield();
            }
            if (i / keys % 2 == 1) {
              continue;
            }
            std::uint32_t count{};
            std::memcpy(&count, lease.bytes().data(), sizeof count);
            ++count;
            std::memcpy(lease.mutable_bytes().data(), &count, sizeof count);
            lease.commit();
          }
        });
      }
    }
    for (Key key = 0; key < keys; ++key) {
      Lease const lease = many->fetch(key);
      std::uint32_t count{};
      std::memcpy(&count, lease.bytes().data(), sizeof count);
      EXPECT_EQ(count, threads * rounds / 2U) << "key " << key << ", " << buffers << " buffers";
    }
  }
}

TEST_P(AnyTiers, NoKeysAreAllowed) {
  EXPECT_THROW((void)make({}, 1)->fetch(0), PreconditionError);
}

TEST_P(AnyTiers, APassBeginsWithoutLeases) {
  {
    Lease const held = tiers->create(0);
    EXPECT_THROW(tiers->begin_pass(), PreconditionError);
  }
  tiers->begin_pass();
}

INSTANTIATE_TEST_SUITE_P(Tiers, AnyTiers,
                         ::testing::Values(Storage{0, 0}, Storage{1, 0}, Storage{1, 1},
                                           Storage{2, 1}, Storage{3, 0}, Storage{1, 100},
                                           Storage{0, 0, 1}, Storage{0, 0, 100}, Storage{1, 1, 2}),
                         [](auto const& storage) {
                           return std::to_string(storage.param.paths) + "Paths" +
                                  std::to_string(storage.param.cached) + "Cached" +
                                  std::to_string(storage.param.resident) + "Resident";
                         });

TEST(HostTiers, ALeaseIsTheExtentItself) {
  auto const tiers = make_host_tiers({extent});
  put(*tiers, 0, 1);
  std::byte const* const first = tiers->fetch(0).bytes().data();
  EXPECT_EQ(tiers->fetch(0).bytes().data(), first);
  EXPECT_EQ(tiers->traffic().read_bytes(), 0);
  EXPECT_EQ(tiers->traffic().hits, 2);
  EXPECT_TRUE(tiers->in_memory(0));
}

TEST(HostTiers, AFetchAsideGivesTheSameAndIsNotCounted) {
  auto const tiers = make_host_tiers({extent});
  put(*tiers, 0, 1);
  std::byte const* const first = tiers->fetch(0).bytes().data();
  Traffic const before = tiers->traffic();
  EXPECT_EQ(tiers->fetch_aside(0).bytes().data(), first);
  EXPECT_EQ(tiers->traffic().hits, before.hits);
  EXPECT_EQ(tiers->traffic().fetched_bytes, before.fetched_bytes);
  EXPECT_EQ(tiers->traffic().fetch_seconds, before.fetch_seconds);
}

TEST(HostTiers, TakeEachExtentsSizeInWholePages) {
  auto const tiers = make_host_tiers({extent, 5000, 8192});
  EXPECT_EQ(tiers->host_bytes(), round_up(extent, 4096) + 8192 + 8192);
}

TEST(HostTiers, AChangeWithoutCommitTearsTheExtent) {
  auto const tiers = make_host_tiers({extent});
  put(*tiers, 0, 1);
  {
    Lease lease = tiers->fetch(0);
    set(lease, 2);
  }
  EXPECT_THROW((void)tiers->fetch(0), PreconditionError);
  put(*tiers, 0, 3);
  EXPECT_TRUE(all(tiers->fetch(0).bytes(), 3));
}

}  // namespace
}  // namespace offstage::tiers
