#include "train/saves/best_loss.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "temporary_directory.hpp"

namespace offstage::train {
namespace {

TEST(BestLoss, CountsValidationsThatAreNoBetter) {
  BestLoss best;
  EXPECT_FALSE(best.any());
  EXPECT_FALSE(best.add({5, std::nan("")}));
  EXPECT_EQ(best.since(), 1);
  EXPECT_FALSE(best.any());
  EXPECT_TRUE(best.add({10, 3.0}));
  EXPECT_FALSE(best.add({15, 3.0}));  // no better
  EXPECT_FALSE(best.add({20, INFINITY}));
  EXPECT_EQ(best.since(), 2);
  EXPECT_TRUE(best.add({25, 2.0}));
  EXPECT_EQ(best.since(), 0);
  EXPECT_EQ(best.best().step, 25);
}

TEST(BestLoss, IsReadFromMetrics) {
  TemporaryDirectory const folder;
  auto const path = folder.write(
      "metrics.jsonl",
      "{\"start\":0}\n{\"step\":\"x\",\"valid_loss\":1.0}\n{\"step\":0,\"valid_loss\":4.5}\n{"
      "\"step\":1,\"loss\":4.0}\n"
      "{\"step\":1,\"valid_loss\":null}\n{\"step\":2,\"valid_loss\":3.5}\n{\"start\":2}\n"
      "{\"step\":3,\"valid_loss\":1.0,\"counts\":false}\n{\"step\":4,\"val");
  auto const [found, starts] = read_earlier_records(path);
  EXPECT_EQ(starts, (std::vector<std::int64_t>{0, 2}));
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[0].step, 0);
  EXPECT_EQ(found[0].loss, 4.5);
  EXPECT_TRUE(std::isnan(found[1].loss));
  EXPECT_EQ(found[2].step, 2);
  EXPECT_TRUE(std::isnan(found[3].loss)) << "it is not to count";
  EXPECT_TRUE(read_earlier_records(path + ".none").validations.empty());
  auto const best = best_after(BestLoss{{1, 4.0}, 0, 1}, found);
  EXPECT_EQ(best.best().step, 2);
  EXPECT_EQ(best.since(), 1);
  EXPECT_EQ(best.last(), 3);
}

TEST(BestLoss, TakesTheLastOfAValidationThatWasMadeAgain) {
  TemporaryDirectory const folder;
  auto const path = folder.write(
      "metrics.jsonl", "{\"step\":1,\"valid_loss\":4.0}\n{\"step\":1,\"valid_loss\":3.0}\n");
  auto const found = read_earlier_records(path).validations;
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].loss, 3.0);
}

}  // namespace
}  // namespace offstage::train
