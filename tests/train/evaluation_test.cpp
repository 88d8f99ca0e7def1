#include "train/run/evaluation.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/error.hpp"
#include "huggingface/model_directory.hpp"
#include "shared_directory.hpp"
#include "state/initialize.hpp"

namespace offstage::train {
namespace {

using ::testing::HasSubstr;

state::ModelShape short_shape() {
  return {.layers = 1,
          .hidden = 32,
          .heads = 2,
          .kv_heads = 2,
          .ffn_hidden = 32,
          .vocab = 256,
          .max_sequence = 2048};
}

/// A model of a seed's weights, and 4000 bytes of text.
class EvaluationOfRanks : public ::testing::Test {
 protected:
  EvaluationOfRanks() {
    task.from = directory.in("model");
    task.data = {{directory.in("text")}};
    task.options = {.key = "--data", .format = data::Format::text};
    task.dtype = DType::fp32;
    task.threads = 1;
    if (comm.rank() == 0) {
      write_model();
      std::ofstream text{directory.in("text")};
      for (int i = 0; i < 4000; ++i) {
        text << static_cast<char>('a' + i * i % 23);
      }
    }
    comm.barrier();
  }
  void write_model() const {
    huggingface::ModelWriter writer{task.from, short_shape(), DType::fp32, GiB};
    writer.create();
    auto const layers = state::layers_of(short_shape());
    for (int layer = 0; layer < std::ssize(layers); ++layer) {
      auto const& layout = layers[static_cast<std::size_t>(layer)];
      state::ChunkRange const all{0, layout.chunks()};
      std::vector<float> numbers(static_cast<std::size_t>(all.count * chunk_elements));
      state::initialize(layout, 1, all, numbers);
      writer.write(layer, all, numbers);
    }
    writer.sync();
    writer.commit();
  }

  mpi::Communicator comm = mpi::Communicator::world();
  mpi::Communicator self = mpi::Communicator::self();
  SharedDirectory directory{comm};
  EvaluationTask task;
};

TEST_F(EvaluationOfRanks, HasTheBitsOfOneRank) {
  task.options.sequence = 64;
  task.micro_batch = 4;
  auto const all = evaluate(task, comm);
  EXPECT_EQ(all.windows, 62);  // and 31 bytes more
  EXPECT_EQ(all.mean.all.targets, 62 * 64);
  EXPECT_NEAR(all.mean.all.loss, std::log(256.0), 1.0);
  EXPECT_EQ(all.mean.all.loss, evaluate(task, self).mean.all.loss);
}

TEST_F(EvaluationOfRanks, TakesUsualSizesWhereNoneAreGivenAndNoMoreRowsThanThereAreWindows) {
  auto const usual = evaluate(task, comm);
  EXPECT_EQ(usual.sequence, usual_sequence);
  EXPECT_EQ(usual.windows, 3);
  EXPECT_EQ(usual.micro_batch, 3);
  task.options.sequence = 512;
  task.most_windows = 2;
  EXPECT_EQ(evaluate(task, comm).micro_batch, 2);
  task.options.sequence = 16;
  task.most_windows = 0;
  EXPECT_EQ(evaluate(task, comm).micro_batch, 249);
  task.options.sequence = 64;
  EXPECT_EQ(evaluate(task, comm).micro_batch, 62);
  task.options.sequence = 128;
  EXPECT_EQ(evaluate(task, comm).micro_batch, 31);
  task.options.sequence = 256;
  EXPECT_EQ(evaluate(task, comm).micro_batch, 15);
}

TEST_F(EvaluationOfRanks, LooksAtTheFirstWindowsAlone) {
  task.options.sequence = 64;
  task.micro_batch = 4;
  task.most_windows = 5;
  auto const first = evaluate(task, comm);
  EXPECT_EQ(first.windows, 5);
  EXPECT_EQ(first.mean.all.targets, 5 * 64);
}

TEST_F(EvaluationOfRanks, RefusesALongerSequenceThanTheModels) {
  task.options.sequence = 2049;
  try {
    static_cast<void>(evaluate(task, comm));
    FAIL() << "no error";
  } catch (mpi::AgreedError const& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_THAT(error.what(), HasSubstr("--sequence=2049"));
  }
}

}  // namespace
}  // namespace offstage::train
