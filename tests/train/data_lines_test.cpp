#include "train/report/data_lines.hpp"

#include <gmock/gmock.h>

namespace offstage::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

data::FileFacts facts(std::string const& path, std::int64_t windows, double share) {
  return {.path = path,
          .format = data::Format::nanogpt,
          .type = data::TokenType::u16,
          .tokens = 10 * windows + 1,
          .windows = windows,
          .share = share,
          .doubt = {}};
}

TEST(DataLines, SayHowOftenAFileIsShown) {
  config::TrainConfig train;
  train.steps = 30;
  train.global_batch = 10;  // 300 samples
  EXPECT_THAT(describe_training_files({facts("a.bin", 200, 1.0)}, train),
              ElementsAre("data.train a.bin: nanogpt, u16, 2001 tokens, documents not told apart; "
                          "1.5 epochs in 30 steps of 10 sequences"));
  auto b = facts("b.bin", 50, 0.25);
  b.documents = 1;
  EXPECT_THAT(
      describe_training_files({facts("a.bin", 200, 0.75), b}, train)[1],
      "data.train b.bin: nanogpt, u16, 501 tokens, 1 document; 1.5 epochs in 30 steps of 10 "
      "sequences, 25 % of the samples");
}

TEST(DataLines, SayTheEpochsOfARunWhoseEarlierStepsHadAnotherBatch) {
  config::TrainConfig train;
  train.steps = 9;
  train.global_batch = 4;
  train.sequence = 6;
  auto const files = {facts("a.bin", 30, 1.0)};
  // 5 steps of 2 sequences of 6 tokens, or of 4 sequences of 3; then 4 steps of 4.
  EXPECT_THAT(correct_epochs(files, train, 5, 10 * train.sequence),
              ElementsAre("data.train a.bin: 0.867 epochs until step 9, as earlier steps had "
                          "another train.global-batch or train.sequence"));
  EXPECT_THAT(correct_epochs(files, train, 5, 20 * train.sequence), IsEmpty());
  EXPECT_THAT(correct_epochs(files, train, 0, 0), IsEmpty());
  EXPECT_THAT(correct_epochs(files, train, 9, 18 * train.sequence), IsEmpty())
      << "nothing is left to do";
}

TEST(DataLines, SayWhatCountsAndHowWindowsAreFilled) {
  auto file = facts("a.bin", 200, 1.0);
  file.counted = 1000;
  file.filled = 0.975;
  EXPECT_THAT(
      describe_validation_files({file}, 200),
      ElementsAre("data.valid a.bin: nanogpt, u16, 2001 tokens, 50.0 % of which count, "
                  "documents not told apart; 200 of 200 windows; 97.5 % of positions filled"));
  file.cut = 1;
  file.left_out = 2;
  EXPECT_THAT(describe_validation_files({file}, 200)[0],
              ::testing::EndsWith("filled, 1 document cut, 2 left out without a target"));
}

TEST(DataLines, SayThatASeparatorDoesNothing) {
  auto file = facts("a.bin", 200, 1.0);
  file.ignores_separator = true;
  EXPECT_THAT(doubts_about({file}, {}, "data.train"),
              ElementsAre("data.train=a.bin: nanogpt data stores where documents end, so that "
                          "data.separator does nothing there"));
}

TEST(DataLines, SayHowManyTokensAreLostWhereDocumentsAreCut) {
  auto file = facts("a.bin", 200, 1.0);
  file.rule = data::WindowRule::whole;
  file.filled = 0.9;
  file.documents = 7;
  file.cut = 2;
  file.lost = 100;
  EXPECT_THAT(describe_validation_files({file}, 200)[0],
              ::testing::EndsWith("filled, 2 documents cut (5.0 % of the tokens lost)"));
  EXPECT_THAT(doubts_about({file}, {}, "data.train"), ::testing::IsEmpty());
  file.lost = 1000;
  EXPECT_THAT(doubts_about({file}, {}, "data.train"),
              ElementsAre("data.train=a.bin: 2 of 7 documents are longer than a sequence and are "
                          "cut, so that 50.0 % of the tokens are never used; take longer "
                          "sequences, or data.cross-documents=false, which parts documents"));
}

TEST(DataLines, DoubtConversationsThatAreCut) {
  auto file = facts("a.bin", 200, 1.0);
  EXPECT_THAT(doubts_about({file}, {}, "data.train"), ::testing::IsEmpty());
  file.counted = 1000;
  file.documents = 1;
  EXPECT_THAT(doubts_about({file}, {}, "data.train"), ::testing::IsEmpty());
  file.documents = 40;
  EXPECT_THAT(doubts_about({file}, {}, "data.train"),
              ElementsAre(::testing::StartsWith("data.train=a.bin: conversations are cut")));
  file.filled = 0.9;
  file.rule = data::WindowRule::whole;
  file.cut = 3;
  EXPECT_THAT(doubts_about({file}, {}, "data.train"), ::testing::IsEmpty());
  file.left_out = 2;
  EXPECT_THAT(doubts_about({file}, {}, "data.train"),
              ElementsAre("data.train=a.bin: of 40 conversations 3 are longer than a sequence and "
                          "are cut, and 2 are left out; take longer sequences"));
  file.rule = data::WindowRule::apart;
  EXPECT_THAT(doubts_about({file}, {}, "--data"),
              ElementsAre(::testing::AllOf(
                  ::testing::StartsWith("--data=a.bin: 3 of 40 conversations are longer"),
                  ::testing::HasSubstr("--cross-documents=whole, which cuts them"))));
  file.cut = 0;
  EXPECT_THAT(doubts_about({file}, {}, "--data"), ::testing::IsEmpty());
  auto const bare = facts("b.bin", 200, 1.0);
  EXPECT_THAT(doubts_about({file, bare}, {}, "data.train"),
              ElementsAre(::testing::StartsWith("data.train=b.bin: has no mask beside it")));
}

TEST(DataLines, SayThatFilesAreTooShort) {
  EXPECT_THAT(doubts_about({facts("c.bin", 200, 1.0)}, {"a.bin"}, "data.train"),
              ElementsAre("data.train=a.bin: left out, as it is too short for a sequence"));
  EXPECT_THAT(doubts_about({facts("c.bin", 200, 1.0)}, {"a.bin", "b.bin"}, "--data"),
              ElementsAre("--data=a.bin: left out, as it is too short for a sequence; and 1 more"));
}

TEST(DataLines, SayThatAModelIsValidatedOnWhatItHasSeen) {
  auto seen = facts("a.bin", 200, 1.0);
  seen.checksum = 1;
  auto copy = facts("copy.bin", 200, 1.0);
  copy.checksum = 1;
  auto other = facts("other.bin", 200, 1.0);
  other.checksum = 2;
  EXPECT_THAT(doubts_about_both({other, seen}, {copy}),
              ElementsAre(::testing::StartsWith(
                  "data.valid=copy.bin: has the tokens of data.train=a.bin, so that its loss")));
  EXPECT_THAT(doubts_about_both({seen}, {other}), ::testing::IsEmpty());
}

TEST(DataLines, SayHowMuchOfEachFileAValidationTakes) {
  auto const lines =
      describe_validation_files({facts("a", 5, 0.5), facts("b", 5, 0.5), facts("c", 5, 0.5)}, 8);
  EXPECT_THAT(lines[0], ::testing::EndsWith("; 5 of 5 windows"));
  EXPECT_THAT(lines[1], ::testing::EndsWith("; 3 of 5 windows"));
  EXPECT_THAT(lines[2], ::testing::EndsWith("; 0 of 5 windows"));
  auto other = facts("d", 5, 0.5);
  other.source = 1;
  auto const of_two = describe_validation_files({facts("a", 5, 0.5), facts("b", 5, 0.5), other}, 8);
  EXPECT_THAT(of_two[0], ::testing::EndsWith("; 5 of 5 windows"));
  EXPECT_THAT(of_two[1], ::testing::EndsWith("; 0 of 5 windows"));
  EXPECT_THAT(of_two[2], ::testing::EndsWith("; 3 of 5 windows"));
}

std::int64_t windows_of_11(std::int64_t micro_batch, std::int64_t valid_batches) {
  config::TrainConfig train;
  train.micro_batch = micro_batch;
  train.valid_batches = valid_batches;
  return windows_per_validation(train, 11);
}

TEST(DataLines, AValidationTakesAllWindowsOrSoManyMicroBatches) {
  EXPECT_EQ(windows_of_11(4, 0), 11);
  EXPECT_EQ(windows_of_11(4, 2), 8);
  EXPECT_EQ(windows_of_11(4, 3), 11);
  EXPECT_EQ(windows_of_11(4, 1'000'000'000'000), 11);
  EXPECT_EQ(windows_of_11(40, 1), 11);
}

TEST(DataLines, DoubtsNameKeyAndPath) {
  auto file = facts("a.bin", 5, 1.0);
  EXPECT_THAT(doubts_about({file}, {}, "data.train"), ::testing::IsEmpty());
  file.doubt = "odd";
  EXPECT_THAT(doubts_about({file}, {}, "data.train"), ElementsAre("data.train=a.bin: odd"));
}

}  // namespace
}  // namespace offstage::train
