#include "update/gradient_accumulator.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

#include "base/dtype.hpp"
#include "base/error.hpp"

namespace offstage::update {
namespace {

constexpr int layers = 3;
constexpr int micro_batches = 5;  // not a multiple of 2 or 3 ranks: the last round has idle ranks

std::vector<state::LayerLayout> layout() {
  std::vector<state::LayerLayout> result;
  for (std::int64_t elements : {5 * 4096, 10, 7 * 4096 - 3}) {
    result.emplace_back().elements = elements;
  }
  return result;
}

/// The gradient of micro-batch g, the same on whatever rank computes it; padding is zero.
template <class T>
std::vector<T> gradient_of(int g, int layer) {
  auto const layers_now = layout();
  state::LayerLayout const& shape = layers_now[static_cast<std::size_t>(layer)];
  std::mt19937 random(static_cast<unsigned>(g * 10 + layer));
  std::normal_distribution<float> normal;
  std::vector<T> values(static_cast<std::size_t>(shape.padded_elements()));
  for (std::size_t i = 0; i < static_cast<std::size_t>(shape.elements); ++i) {
    values[i] = store<T>(normal(random));
  }
  return values;
}

/// The sum that must come out, element by element, in order of g.
template <class T, class A>
std::vector<A> expected_sum(int layer) {
  std::vector<A> sum;
  for (int g = 0; g < micro_batches; ++g) {
    auto const gradient = gradient_of<T>(g, layer);
    sum.resize(gradient.size());
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      sum[i] = store<A>(g == 0 ? load(gradient[i]) : load(sum[i]) + load(gradient[i]));
    }
  }
  return sum;
}

template <class T>
class Step {
 public:
  explicit Step(bool fp32) : accumulator_{map_, comm_, *stream_, fp32} {
    accumulator_.begin_step();
    int const ranks = comm_.size();
    for (int g = 0; g < micro_batches; g += ranks) {
      accumulator_.begin_round(std::min(ranks, micro_batches - g));
      for (int layer = layers - 1; layer >= 0; --layer) {
        int const mine = g + comm_.rank();
        auto const gradient = mine < micro_batches ? gradient_of<T>(mine, layer) : std::vector<T>{};
        accumulator_.add(layer, gradient);
      }
    }
  }

  template <class A>
  void expect_sums(std::span<A const> shard) {
    for (int layer = 0; layer < layers; ++layer) {
      auto const expected = expected_sum<T, A>(layer);
      state::ChunkRange const mine = map_.chunks(layer, comm_.rank());
      auto const offset = static_cast<std::size_t>(map_.shard_offset(layer, comm_.rank()));
      for (std::size_t i = 0; i < static_cast<std::size_t>(mine.count * chunk_elements); ++i) {
        ASSERT_EQ(shard[offset + i],
                  expected[static_cast<std::size_t>(mine.first * chunk_elements) + i]);
      }
    }
  }

  GradientAccumulator<T>& accumulator() { return accumulator_; }

 private:
  mpi::Communicator comm_ = mpi::Communicator::world();
  state::ShardMap map_{layout(), comm_.size()};
  std::unique_ptr<device::Device> device_ = device::make_host_device(0);
  std::unique_ptr<device::Stream> stream_ = device_->make_stream("compute");
  GradientAccumulator<T> accumulator_;
};

TEST(GradientAccumulator, SumsInOrderOfTheMicroBatchOnAnyNumberOfRanks) {
  Step<float> fp32{true};
  fp32.expect_sums(fp32.accumulator().fp32());
  Step<bfloat16> wide{true};
  wide.expect_sums(wide.accumulator().fp32());
  Step<bfloat16> narrow{false};
  narrow.expect_sums(narrow.accumulator().native());
  Step<float16> wide16{true};
  wide16.expect_sums(wide16.accumulator().fp32());
  Step<float16> narrow16{false};
  narrow16.expect_sums(narrow16.accumulator().native());
}

TEST(GradientAccumulator, NormIsThatOfAllElementsInChunkOrder) {
  double sum = 0.0;
  for (int layer = 0; layer < layers; ++layer) {
    auto const all = expected_sum<bfloat16, float>(layer);
    for (std::size_t chunk = 0; chunk < all.size(); chunk += chunk_elements) {
      std::array<double, 16> lanes{};
      for (std::size_t i = 0; i < chunk_elements; ++i) {
        lanes[i % 16] += static_cast<double>(all[chunk + i]) * static_cast<double>(all[chunk + i]);
      }
      double chunk_sum = 0.0;
      for (double const lane : lanes) {
        chunk_sum += lane;
      }
      sum += chunk_sum;
    }
  }

  EXPECT_EQ(Step<bfloat16>{true}.accumulator().norm(), std::sqrt(sum));
}

// What loss scaling looks for: an overflow of any rank reaches every rank's norm, also where the
// sum itself has not left the range.
TEST(GradientAccumulator, AnInfiniteFloat16GradientMakesTheNormNotFinite) {
  for (bool const fp32 : {true, false}) {
    Step<float16> step{fp32};
    EXPECT_TRUE(std::isfinite(step.accumulator().norm()));
    step.accumulator().begin_round(1);
    for (int layer = layers - 1; layer >= 0; --layer) {
      std::vector<float16> gradient;
      if (mpi::Communicator::world().rank() == 0) {
        gradient = gradient_of<float16>(0, layer);
        gradient[0] = layer == 1 ? to_fp16(65520.0F) : gradient[0];
      }
      step.accumulator().add(layer, gradient);
    }
    EXPECT_FALSE(std::isfinite(step.accumulator().norm()));
  }
}

TEST(GradientAccumulator, ANewStepForgetsTheOneBefore) {
  Step<float> step{true};
  double const before = step.accumulator().norm();
  step.accumulator().begin_step();
  step.accumulator().begin_round(1);
  bool const active = mpi::Communicator::world().rank() == 0;
  for (int layer = layers - 1; layer >= 0; --layer) {
    auto const zeros =
        active ? std::vector<float>(gradient_of<float>(0, layer).size()) : std::vector<float>{};
    step.accumulator().add(layer, zeros);
  }

  EXPECT_GT(before, 0.0);
  EXPECT_EQ(step.accumulator().norm(), 0.0);
}

TEST(GradientAccumulator, RefusesAGradientFromAnIdleRankAndNoneFromAnActiveOne) {
  Step<float> step{true};
  step.accumulator().begin_round(1);
  bool const active = mpi::Communicator::world().rank() == 0;
  auto const wrong = active ? std::vector<float>{} : gradient_of<float>(0, 1);

  EXPECT_THROW(step.accumulator().add(1, wrong), PreconditionError);
}

}  // namespace
}  // namespace offstage::update
