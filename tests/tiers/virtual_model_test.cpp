// Random operations of several threads against a plain map of what every extent holds.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <random>
#include <tuple>

#include "base/thread.hpp"
#include "tiers/versioned_bytes.hpp"
#include "tiers/virtual_support.hpp"

namespace offstage::tiers {
namespace {

constexpr Key keys = 9;

Bytes size_of(Key key) {
  return key % 3 == 0 ? 8 * KiB : 3000 * (key % 3) + 8;
}

using Parameters = std::tuple<int, std::int64_t, Evict, Verify>;

class VirtualModel : public ::testing::TestWithParam<Parameters>, public VirtualFixture {
 protected:
  VirtualModel() {
    auto const [number, cached, evict, verify] = GetParam();
    add_paths(number);
    settings.cached = number == 0 ? keys : cached;
    settings.evict = evict;
    settings.verify = verify;
  }
  std::unique_ptr<Tiers> make_first_versions() {
    std::vector<Bytes> sizes;
    for (Key key = 0; key < keys; ++key) {
      sizes.push_back(size_of(key));
      versions[key] = 0;
    }
    auto tiers = make(sizes);
    for (Key key = 0; key < keys; ++key) {
      Lease lease = tiers->create(key);
      write(lease, 0);
      lease.commit();
    }
    return tiers;
  }
  /// One operation; the lease is what makes a key's version this thread's alone.
  void step(Tiers& tiers, std::mt19937& random) {
    auto const key = static_cast<Key>(random() % keys);
    unsigned const choice = random() % 8;
    Lease lease = choice == 0 ? tiers.create(key) : tiers.fetch(key);
    int& version = versions.at(key);
    if (choice > 0) {
      good = good && holds(lease, version);
    }
    if (choice < 5) {
      write(lease, ++version);
      lease.commit();
    }
  }

  void work_on(Tiers& tiers, unsigned workers, int steps) {
    tiers.begin_pass();
    std::vector<NamedThread> threads;
    for (unsigned t = 0; t < workers; ++t) {
      threads.emplace_back("worker", [&, t] {
        std::mt19937 random{t};
        for (int i = 0; i < steps; ++i) {
          step(tiers, random);
        }
      });
    }
  }
  void expect_last_versions(Tiers& tiers) {
    for (Key key = 0; key < keys; ++key) {
      good = good && holds(tiers.fetch(key), versions.at(key));
    }
    EXPECT_TRUE(good);
    Residence const residence = tiers.residence();
    Bytes sum = residence.host;
    for (Bytes const bytes : residence.paths) {
      sum += bytes;
    }
    EXPECT_EQ(sum, 3 * 8 * KiB + 3 * 3008 + 3 * 6008);
  }

  std::map<Key, int> versions;
  std::atomic<bool> good = true;
};

TEST_P(VirtualModel, GivesBackWhatWasCommittedLast) {
  for (int const buffers : {1, 3}) {
    settings.buffers = buffers;
    auto const tiers = make_first_versions();
    work_on(*tiers, 4, 20);
    work_on(*tiers, 4, 20);
    expect_last_versions(*tiers);
  }
}

INSTANTIATE_TEST_SUITE_P(
    VirtualTiers, VirtualModel,
    ::testing::Combine(::testing::Values(0, 1, 2, 3), ::testing::Values(0, 1, keys / 2, keys),
                       ::testing::Values(Evict::farthest, Evict::oldest),
                       ::testing::Values(Verify::always, Verify::sample, Verify::off)));

/// Three paths, small caches and buffers.
using VirtualModelUnderFaults = VirtualModel;

TEST_P(VirtualModelUnderFaults, GivesBackWhatWasCommittedLast) {
  std::mt19937 random{7};
  int writes = 0;
  // Transfers from a slot that succeed after one that did not: a read is tried three times.
  std::map<std::pair<int, Bytes>, int> spared;
  kernel->on_submit = [&](aio::Transfer& transfer) {
    unsigned const choice = random() % 16;
    if (choice == 0) {
      return -EINTR;
    }
    if (choice == 1) {
      return -EAGAIN;
    }
    if (choice < 6) {
      transfer.length = std::min<Bytes>(transfer.length, 4 * KiB);
    }
    return 0;
  };
  kernel->on_complete = [&](aio::Transfer const& transfer, aio::Completion& completion) {
    if (transfer.direction == aio::Direction::write) {
      if (++writes > 60 && path_of(transfer) == 2) {
        completion.result = -EIO;
      }
      return;
    }
    int& rest = spared[{transfer.descriptor, transfer.offset / (8 * KiB)}];
    if (--rest > 0) {
      return;
    }
    unsigned const choice = random() % 16;
    if (choice == 0) {
      completion.result = -EIO;
    } else if (choice == 1) {
      transfer.memory[random() % 3000] ^= std::byte{4};
    }
    rest = choice < 2 ? 8 : 0;
  };
  kernel->on_wait = [&] { return random() % 16 == 0 ? -EINTR : 0; };
  kernel->reverse = true;
  ::testing::internal::CaptureStderr();
  auto const tiers = make_first_versions();
  work_on(*tiers, 6, 60);
  expect_last_versions(*tiers);
  EXPECT_EQ(count(::testing::internal::GetCapturedStderr(), "is left out"), 1U);
}

INSTANTIATE_TEST_SUITE_P(VirtualTiers, VirtualModelUnderFaults,
                         ::testing::Combine(::testing::Values(3), ::testing::Values(0, 2),
                                            ::testing::Values(Evict::farthest, Evict::oldest),
                                            ::testing::Values(Verify::always)));

}  // namespace
}  // namespace offstage::tiers
