// Sums that are written in the background: who waits for what, what others may fetch when, and
// errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "gradient_fixture.hpp"

namespace offstage::update {
namespace {

using Call = MemoryTiers::Call;

TEST(GradientAccumulator, WritesInTheBackgroundAndKnowsTheNormBeforeThat) {
  std::promise<void> let_go;
  auto const gate = let_go.get_future().share();
  Place place{.subgroup_chunks = 7, .buffers = 4};  // one rank has three subgroups
  place.accumulated_hook = [gate](MemoryTiers::Event event) {
    if (event.call == Call::commit) {
      gate.wait();
    }
  };
  GradientFixture<float> gradients{place};
  auto const gradient = [&](int layer) { return gradient_of<float>(0, layer); };
  gradients->begin_step();
  gradients->begin_round(1, true);
  for (int layer = layers - 1; layer >= 0; --layer) {
    gradients.bring(layer, gradients.rank() == 0 ? gradient(layer) : std::vector<float>{});
  }
  EXPECT_EQ(gradients.accumulated().held(), std::ssize(gradients.subgroups()));
  EXPECT_GT(gradients->norm(), 0.0);
  let_go.set_value();
  gradients->end_round();
  EXPECT_EQ(gradients.accumulated().held(), 0);
}

// Alone: in the exchange others would be waited for, too.
TEST(GradientAccumulator, ReturnsWhileSumsAreMade) {
  std::promise<void> let_go;
  Place place{.subgroup_chunks = 1, .in_memory = 100, .emulation = link};
  place.accumulated_hook = [gate = let_go.get_future().share()](MemoryTiers::Event event) {
    if (event.call == Call::create) {
      gate.wait();  // on the cores, or for a buffer
    }
  };
  GradientFixture<float> gradients{place, mpi::Communicator::self()};
  gradients->begin_step();
  gradients->begin_round(1, true);
  gradients.bring(4, gradient_of<float>(0, 4));
  gradients.bring(3, gradient_of<float>(0, 3));
  auto third = std::async(std::launch::async, [&] {  // two are staged
    gradients.bring(2, gradient_of<float>(0, 2));
  });
  EXPECT_EQ(third.wait_for(std::chrono::milliseconds{20}), std::future_status::timeout);
  EXPECT_THAT(gradients.accumulated().keys_of(Call::commit), testing::IsEmpty());
  let_go.set_value();
  third.get();
  gradients.bring(1, gradient_of<float>(0, 1));
  gradients.bring(0, gradient_of<float>(0, 0));
  gradients->end_round();
}

/// What an accumulator says of a step's gradients.
struct Finals final : FinalGradients {
  void complete(tiers::Key key, double sum) override {
    std::scoped_lock const lock{mutex};
    keys.push_back(key);
    squares += sum;
    if (then) {
      then(key);
    }
  }
  std::function<void(tiers::Key)> then{};
  std::mutex mutex;
  std::vector<tiers::Key> keys;
  double squares = 0.0;
};

TEST(GradientAccumulator, SaysInTheLastRoundWhichGradientsAreFinalAndHowLargeTheyAre) {
  for (bool const flush : {false, true}) {
    for (device::Emulation const& emulation : {device::Emulation{}, link}) {
      Finals finals;
      GradientFixture<float> gradients{{.flush = flush,
                                        .subgroup_chunks = 3,
                                        .in_memory = 1,
                                        .emulation = emulation,
                                        .receiver = &finals},
                                       mpi::Communicator::self()};
      auto const gradient = [](int layer) { return gradient_of<float>(0, layer); };
      gradients->begin_step();
      gradients.round(1, false, gradient);
      EXPECT_THAT(finals.keys, testing::IsEmpty());
      gradients.round(1, true, gradient);
      EXPECT_EQ(finals.keys, gradients.descending());
      EXPECT_NEAR(std::sqrt(finals.squares), gradients->norm(), 1e-9);
    }
  }
}

TEST(GradientAccumulator, SaysHowLargeSumsAreThatWereMadeOnTheDeviceAndLeftIt) {
  Finals finals;
  GradientFixture<float> gradients{{.subgroup_chunks = 3,
                                    .emulation = link,
                                    .receiver = &finals,
                                    .held_room = room_for_all,
                                    .sums_there = true},
                                   mpi::Communicator::self()};
  gradients.step();
  double squares = 0.0;
  for (std::int64_t const index : gradients.others()) {
    auto const lease = gradients->fetch(gradients.subgroups()[static_cast<std::size_t>(index)]);
    for (float const value : std::get<std::span<float const>>(lease.view)) {
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
  }
  EXPECT_THAT(finals.keys, testing::UnorderedElementsAreArray(gradients.descending()));
  EXPECT_NEAR(finals.squares, squares, 1e-9 * squares);
}

TEST(GradientAccumulator, SaysWhatIsFinalOnTheDeviceTooWithoutItsSize) {
  Finals finals;
  GradientFixture<float> gradients{
      {.subgroup_chunks = 1, .emulation = link, .receiver = &finals, .held_room = room_for_all},
      mpi::Communicator::self()};
  gradients.step();
  EXPECT_THAT(finals.keys, testing::UnorderedElementsAreArray(gradients.descending()));
  EXPECT_GT(finals.squares, 0.0);
  EXPECT_LT(finals.squares, gradients->norm() * gradients->norm());
}

TEST(GradientAccumulator, CanBeFetchedFromTheMomentThatTheyAreFinal) {
  // By another thread, from the only buffer, while backward goes on.
  for (bool const flush : {false, true}) {
    std::promise<GradientFixture<float>*> made;
    auto const there = made.get_future().share();
    std::vector<std::future<float>> fetched;
    Place place{.flush = flush, .subgroup_chunks = 1, .buffers = 1};
    Finals finals;
    place.receiver = &finals;
    finals.then = [&](tiers::Key key) {
      fetched.push_back(std::async(std::launch::async, [key, there] {
        auto& gradients = *there.get();
        auto const lease = gradients->fetch(gradients.subgroups()[static_cast<std::size_t>(key)]);
        return std::get<std::span<float const>>(lease.view)[0];
      }));
    };
    GradientFixture<float> gradients{place, mpi::Communicator::self()};
    made.set_value(&gradients);
    gradients.step();
    std::vector<float> firsts;  // before a pass begins, which no lease may outlast
    for (auto& first : fetched) {
      firsts.push_back(first.get());
    }
    ASSERT_EQ(firsts.size(), gradients.subgroups().size());
    auto const expected = gradients.shard<float>();
    for (std::size_t i = 0; i < firsts.size(); ++i) {
      auto const& subgroup = gradients.subgroups()[firsts.size() - 1 - i];
      EXPECT_EQ(firsts[i], expected[static_cast<std::size_t>(subgroup.begin)]);
    }
  }
}

TEST(GradientAccumulator, NeverWaitsForItselfHoweverFewBuffersThereAre) {
  auto const slow = [](MemoryTiers::Event event) {
    std::this_thread::sleep_for(std::chrono::microseconds{(event.key * 37) % 300});
  };
  for (int const buffers : {1, 2, 3}) {
    for (bool const flush : {false, true}) {
      for (std::int64_t const in_memory : {0, 3}) {
        GradientFixture<float> gradients{{.flush = flush,
                                          .subgroup_chunks = 1,
                                          .in_memory = in_memory,
                                          .buffers = buffers,
                                          .accumulated_hook = slow,
                                          .flushed_hook = slow}};
        gradients.step();
        EXPECT_EQ(gradients.shard<float>(), gradients.expected_shard<float>());
      }
    }
  }
}

/// Throws at the n-th call of a kind.
auto failing(Call call, int n) {
  auto const left = std::make_shared<std::atomic<int>>(n);
  return [=](MemoryTiers::Event event) {
    if (event.call == call && --*left == 0) {
      throw IoError{"the disk is gone"};
    }
  };
}

// Alone: where one rank of several throws, the program aborts the others (see cli).
void expect_error_to_stay(device::Emulation const& emulation) {
  for (bool const flush : {false, true}) {
    for (int const n : {1, 4, 17}) {  // the last call of a kind, too
      for (auto const call : {Call::create, Call::commit}) {
        Place place{.flush = flush, .subgroup_chunks = 1, .buffers = 1, .emulation = emulation};
        (flush ? place.flushed_hook : place.accumulated_hook) = failing(call, n);
        GradientFixture<float> gradients{place, mpi::Communicator::self()};
        ASSERT_EQ(gradients.subgroups().size(), 17U);
        auto const gradient = [](int layer) { return gradient_of<float>(0, layer); };
        EXPECT_THROW(gradients.round(1, true, gradient), IoError);
        if (flush || call == Call::commit) {
          EXPECT_THROW(gradients->end_round(), Error);
        }
      }
    }
  }
}

TEST(GradientAccumulator, AnErrorOfABackgroundWriteReachesTheCallerAndStays) {
  expect_error_to_stay({});
  expect_error_to_stay(link);
}

TEST(GradientAccumulator, EndsItsLeasesAndTransfersWhenARoundIsGivenUp) {
  Place place{.subgroup_chunks = 3, .buffers = 3, .emulation = {.device_to_host = 10e6}};
  place.accumulated_hook = [](MemoryTiers::Event event) {
    if (event.call == Call::commit) {
      std::this_thread::sleep_for(std::chrono::milliseconds{5});
    }
  };
  GradientFixture<float> gradients{place, mpi::Communicator::self()};
  gradients->begin_round(1, true);
  for (int layer = layers - 1; layer >= 2; --layer) {
    gradients.bring(layer, gradient_of<float>(0, layer));
  }
  // Destruction waits for the write, the addition and the transfers that run, and for no other.
}

TEST(GradientAccumulator, LetsGoOfTheBufferThatAFetchWaitsForWhenARoundIsGivenUp) {
  GradientFixture<float> gradients{{.subgroup_chunks = 3, .buffers = 1}, mpi::Communicator::self()};
  gradients->begin_step();
  gradients->begin_round(1, true);
  for (int layer = layers - 1; layer >= 3;
       --layer) {  // the last subgroup, and part of the one before
    gradients.bring(layer, gradient_of<float>(0, layer));
  }
  auto waiting = std::async(std::launch::async, [&] {
    static_cast<void>(gradients->fetch(gradients.subgroups().back()));
  });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds{10}), std::future_status::timeout);
  gradients->abandon();
  waiting.get();
}

}  // namespace
}  // namespace offstage::update
