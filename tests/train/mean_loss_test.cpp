#include "train/step/mean_loss.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.hpp"
#include "temporary_directory.hpp"

namespace offstage::train {
namespace {

/// Seven windows of two tokens; each micro-batch of two rows has as its loss the first token of its
/// first row.
class MeanLossOfRanks : public ::testing::Test {
 protected:
  MeanLossOfRanks() {
    std::string bytes;
    for (char token = 0; token < 15; ++token) {
      bytes += token;
    }
    data = std::make_unique<data::Dataset>(
        std::vector<data::Source>{{directory.write("tokens", bytes)}},
        data::DatasetOptions{
            .key = "data.valid", .format = data::Format::text, .vocab = 256, .sequence = 2});
  }
  [[nodiscard]] MeanLosses of(std::int64_t windows) {
    return mean_loss(comm, *data, windows, 2,
                     {.evaluate =
                          [&](data::TokenBatch const& batch) {
                            ++evaluated;
                            return static_cast<double>(batch.tokens.front()) *
                                   static_cast<double>(data::counted_targets(batch)) / 4.0;
                          },
                      .idle = [&] { ++idle; },
                      .expect = [&] { ++expected; }})
        .value();
  }

  mpi::Communicator comm = mpi::Communicator::world();
  TemporaryDirectory directory;
  std::unique_ptr<data::Dataset> data;
  int evaluated = 0, idle = 0, expected = 0;
};

TEST_F(MeanLossOfRanks, IsTheSameForAnyNumberOfThem) {
  auto const mean = of(7).all;  // four micro-batches, the last with one row that does not count
  EXPECT_EQ(mean.targets, 14);
  EXPECT_EQ(mean.loss, (0.0 * 4 + 4.0 * 4 + 8.0 * 4 + 12.0 * 2) / 14.0);
}

TEST_F(MeanLossOfRanks, TakesTheFirstWindowsAlone) {
  auto const mean = of(4).all;
  EXPECT_EQ(mean.targets, 8);
  EXPECT_EQ(mean.loss, 2.0);
}

TEST_F(MeanLossOfRanks, HasThatOfEachSourceBesides) {
  auto const one = of(7);
  ASSERT_EQ(one.sources.size(), 1U);
  EXPECT_EQ(one.sources[0].mean.loss, one.all.loss);
  auto const first = directory.path() / "tokens";  // micro-batches of windows 0 1, 2 3, 4 5, 6
  auto const second = directory.write("five", std::string("\1\2\3\4\5", 5));  // and 7 8
  auto const third = directory.write("seven", std::string(7, '\7'));          // and 9 10, 11
  data = std::make_unique<data::Dataset>(
      std::vector<data::Source>{{first}, {second}, {third}},
      data::DatasetOptions{
          .key = "data.valid", .format = data::Format::text, .vocab = 256, .sequence = 2});
  auto const three = of(12);
  ASSERT_EQ(three.sources.size(), 3U);
  EXPECT_EQ(three.sources[0].path, first);
  EXPECT_EQ(three.sources[0].mean.loss, one.all.loss);
  EXPECT_EQ(three.sources[0].mean.targets, 14);
  EXPECT_EQ(three.sources[1].mean.loss, 1.0);
  EXPECT_EQ(three.sources[1].mean.targets, 4);
  EXPECT_EQ(three.sources[2].mean.loss, 7.0);
  EXPECT_EQ(three.sources[2].mean.targets, 6);
  EXPECT_EQ(three.all.targets, 24);
  EXPECT_DOUBLE_EQ(three.all.loss, (14 * one.all.loss + 4 * 1.0 + 6 * 7.0) / 24);
  auto const some = of(8);  // one of each, and 5 of the other 6, 1 and 2 by their sizes
  ASSERT_EQ(some.sources.size(), 3U);
  EXPECT_EQ(some.sources[0].mean.targets, 8);
  EXPECT_EQ(some.sources[1].mean.targets, 4);
  EXPECT_EQ(some.sources[2].mean.targets, 4);
}

TEST_F(MeanLossOfRanks, HasARankIdleThatIsLeftWithoutAMicroBatch) {
  static_cast<void>(of(7));
  int const rounds = (4 + comm.size() - 1) / comm.size();
  EXPECT_EQ(evaluated + idle, rounds);
  EXPECT_EQ(expected, rounds) << "each round is announced, the first one before it";
  EXPECT_EQ(comm.sum(std::int64_t{evaluated}), 4);
}

TEST_F(MeanLossOfRanks, EndsOnAllRanksWhereItIsNotWantedAnyMore) {
  int rounds = 0;
  auto const mean =
      mean_loss(comm, *data, 7, 2,
                {.evaluate = [&](data::TokenBatch const&) { return ++evaluated, 1.0; },
                 .idle = [&] { ++idle; },
                 .expect = [&] { ++expected; },
                 .still_wanted = [&] { return ++rounds < 2; }});
  int const all = (4 + comm.size() - 1) / comm.size();
  EXPECT_EQ(mean.has_value(), all <= 2) << "the last round is not asked";
  EXPECT_EQ(evaluated + idle, std::min(all, 2));
  EXPECT_EQ(expected, std::min(all, 2)) << "no round is announced that does not come";
}

TEST_F(MeanLossOfRanks, ATargetThatCountsIsLookedForInTheFirstWindows) {
  std::string const header{
      "OFFMASK1"
      "\x0f\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0"
      "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
      40};
  std::string mask(15, '\0');
  mask[6] = 1;  // the last target of the third window
  directory.write("tokens.mask", header + mask);
  data::Dataset const masked{
      {{directory.path() / "tokens"}},
      {.key = "data.valid", .format = data::Format::text, .vocab = 256, .sequence = 2}};
  EXPECT_NO_THROW(require_target(masked, 3, "data.valid=tokens"));
  try {
    require_target(masked, 2, "data.valid=tokens");
    FAIL();
  } catch (DataError const& error) {
    EXPECT_STREQ(error.what(), "data.valid=tokens: no target of the first 2 windows counts");
  }
}

}  // namespace
}  // namespace offstage::train
