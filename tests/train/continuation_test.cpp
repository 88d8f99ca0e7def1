#include "train/saves/continuation.hpp"

#include <gmock/gmock.h>

#include <filesystem>

#include "temporary_directory.hpp"
#include "train/step/schedule.hpp"

namespace offstage::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<config::Setting> settings(
    std::vector<std::pair<std::string, std::string>> const& values,
    std::string const& origin = "a.cfg:1") {
  std::vector<config::Setting> result;
  for (auto const& [key, value] : values) {
    result.push_back({key, value, origin});
  }
  return result;
}

TEST(Continuation, SaysNothingWhereNothingChanged) {
  auto const now = settings({{"optimizer.lr", "0.1"}, {"tiers.path", "/a"}, {"tiers.path", "/b"}});
  EXPECT_THAT(describe_changes(text_of(now, 12), now), IsEmpty());
}

TEST(Continuation, ShowsWhatChangedByKey) {
  auto const before = settings({{"data.train", "a.txt"},
                                {"numerics.dtype", "bf16"},
                                {"optimizer.lr", "0.1"},
                                {"optimizer.weight-decay", "0.1"},
                                {"run.dir", "here"},
                                {"run.threads", "1"},
                                {"train.log-every", "10"},
                                {"train.sequence", "64"}});
  auto const now = settings({{"data.train", "b.txt"},
                             {"numerics.dtype", "fp32"},
                             {"optimizer.lr", "0.1"},
                             {"optimizer.weight-decay", ""},
                             {"run.dir", "there"},
                             {"run.threads", "2"},
                             {"train.log-every", "1"},
                             {"train.sequence", "32"}});
  auto const lines = describe_changes(text_of(before, 0), now);
  ASSERT_EQ(lines.size(), 6);
  EXPECT_THAT(lines[0], ::testing::MatchesRegex(" +changed +in the checkpoint +now"));
  EXPECT_THAT(lines[1], ::testing::MatchesRegex(" +data.train +a.txt +b.txt"));
  EXPECT_THAT(lines[2], ::testing::MatchesRegex(" +numerics.dtype +bf16 +fp32"));
  EXPECT_THAT(lines[3], ::testing::MatchesRegex(" +optimizer.weight-decay +0.1 +-"));
  EXPECT_THAT(lines[4], ::testing::MatchesRegex(" +train.sequence +64 +32"));
  EXPECT_THAT(lines[5],
              AllOf(HasSubstr("no weight depends on it: train.log-every"), Not(HasSubstr("run."))));
}

TEST(Continuation, KeepsColumnsApartWhateverTheirValues) {
  std::string const long_name(100, 'a');
  auto const before = settings({{"data.train", long_name}, {"optimizer.lr", "0.1"}});
  auto const now = settings({{"data.train", "b.txt"}, {"optimizer.lr", "0.2"}});
  auto const lines = describe_changes(text_of(before, 0), now);
  ASSERT_EQ(lines.size(), 3);
  EXPECT_EQ(lines[1].find("b.txt"), lines[0].find("now"));
  EXPECT_EQ(lines[2].find("0.2"), lines[0].find("now"));
}

TEST(Continuation, ShowsThatOtherTokensAreInTheFiles) {
  auto const data = [](std::string const& contents) {
    auto result = settings({{"data.train", "a.txt"}, {"data.valid", "b.txt"}});
    result.push_back({"data.train contents", contents, "default"});
    result.push_back({"data.valid contents", contents, "default"});
    return result;
  };
  auto const before = text_of(data("80 tokens, 1"), 0);
  EXPECT_THAT(describe_changes(before, data("80 tokens, 1")), IsEmpty());
  EXPECT_FALSE(validates_otherwise(before, data("80 tokens, 1")));
  auto const lines = describe_changes(before, data("96 tokens, 1"));
  ASSERT_EQ(lines.size(), 3);
  EXPECT_THAT(lines[1],
              ::testing::MatchesRegex(" +data.train contents +80 tokens, 1 +96 tokens, 1"));
  EXPECT_TRUE(validates_otherwise(before, data("96 tokens, 1")));
  // A checkpoint of a program that did not write them.
  EXPECT_THAT(describe_changes("data.train=a.txt\ndata.valid=b.txt\n", data("80 tokens, 1")),
              IsEmpty());
}

TEST(Continuation, KeepsTheLongestSequenceUnlessOneIsGiven) {
  auto const value = [](std::string const& then, std::string const& now, char const* origin) {
    return with_longest_sequence(then, settings({{"model.max-sequence", now}}, origin))[0].value;
  };
  EXPECT_EQ(value("model.max-sequence=128\n", "32", "default"), "128");
  EXPECT_EQ(value("model.max-sequence=128\n", "32", "a.cfg:1"), "32");
  EXPECT_EQ(value("model.max-sequence=128\n", "256", "default"), "256");
  EXPECT_EQ(value("", "32", "default"), "32");
}

TEST(Continuation, AKeyThatTheCheckpointDoesNotKnowCountsWhereItIsGiven) {
  EXPECT_THAT(describe_changes("", settings({{"optimizer.new", "1"}}, "default")), IsEmpty());
  EXPECT_EQ(describe_changes("", settings({{"optimizer.new", "1"}})).size(), 2);
}

TEST(Continuation, AnOlderRunSawWholeWindows) {
  auto const now = [](char const* attention) {
    return settings({{"data.attention", attention}}, "default");
  };
  EXPECT_THAT(describe_changes("data.cross-documents=whole\n", now("window")), IsEmpty());
  auto const lines = describe_changes("data.cross-documents=whole\n", now("document"));
  ASSERT_EQ(lines.size(), 2);
  EXPECT_THAT(lines[1], ::testing::MatchesRegex(" +data.attention +window +document"));
  EXPECT_THAT(describe_changes("", now("document")), IsEmpty()) << "of an import";
  EXPECT_FALSE(validates_otherwise("data.cross-documents=whole\n", now("window")));
  EXPECT_TRUE(validates_otherwise("data.cross-documents=whole\n", now("document")));
}

TEST(Continuation, TheSameNumberWrittenOtherwiseIsNoChange) {
  EXPECT_THAT(describe_changes("optimizer.lr=0.1\ntrain.steps=20000\nmodel.norm-eps=1e-5\n",
                               settings({{"optimizer.lr", "1e-1"},
                                         {"train.steps", "20k"},
                                         {"model.norm-eps", "1e-05"}})),
              IsEmpty());
  EXPECT_EQ(describe_changes("optimizer.lr=0.1\nmodel.max-sequence=8\n",
                             settings({{"optimizer.lr", "0.10001"}, {"model.max-sequence", "16"}}))
                .size(),
            3);
}

TEST(Continuation, TokensAreThoseThatWereCounted) {
  EXPECT_EQ(tokens_of(text_of(settings({{"train.sequence", "64"}}), 1000), 7, 32), 1000);
  // Checkpoints of before tell by their own sequence; damaged numbers count as none.
  EXPECT_EQ(tokens_of("train.sequence=64\n", 7, 32), 7 * 64);
  EXPECT_EQ(tokens_of("train.sequence=x\ntokens=-3\n", 7, 32), 7 * 32);
  EXPECT_EQ(tokens_of("", 7, 32), 7 * 32);
}

TEST(Continuation, TheBestValidationIsKept) {
  BestLoss best;
  best.add({0, 4.25});
  best.add({10, 0.1 + 0.2});
  best.add({20, 5.0});
  BestLoss const found = best_of(text_of({}, 7, best));
  EXPECT_EQ(found.best().step, 10);
  EXPECT_EQ(found.best().loss, 0.1 + 0.2);
  EXPECT_EQ(found.since(), 1);
  EXPECT_EQ(found.last(), 20);

  BestLoss none;
  none.add({5, NAN});
  EXPECT_EQ(last_loss_of(text_of({}, 7, best, 0.1 + 0.2)), 0.1 + 0.2);
  EXPECT_EQ(last_loss_of(text_of({}, 7, best)), std::nullopt);
  BestLoss const as_bad = best_of(text_of({}, 7, none));
  EXPECT_FALSE(as_bad.any());
  EXPECT_EQ(as_bad.since(), 1);

  for (char const* const text :
       {"", "tokens=3\n", "best-validation.since=x\nbest-validation.last=9\n"}) {
    EXPECT_FALSE(best_of(text).any()) << text;
    EXPECT_EQ(best_of(text).last(), -1) << text;
  }
}

TEST(Continuation, AnotherStartIsSaidToHaveNoEffect) {
  auto const from = [](std::string const& value) { return settings({{"train.init-from", value}}); };
  EXPECT_THAT(warning_of_start(text_of(from("a"), 0), from("b")),
              AllOf(HasSubstr("train.init-from=b is not used"), HasSubstr("began with a;")));
  EXPECT_THAT(warning_of_start(text_of(from(""), 0), from("b")), HasSubstr("with random weights"));
  EXPECT_EQ(warning_of_start(text_of(from("a"), 0), from("a")), "");
  EXPECT_EQ(warning_of_start(text_of(from("a"), 0), from("")), "");
  EXPECT_EQ(warning_of_start("", from("b")), "");
  EXPECT_THAT(describe_changes(text_of(from("a"), 0), from("b")), IsEmpty());
  EXPECT_EQ(warning_of_start(text_of(from("/"), 0), from("/./")), "") << "one place";
}

TEST(Continuation, WhatARunBeganWithStays) {
  auto const from = [](std::string const& value) { return settings({{"train.init-from", value}}); };
  EXPECT_EQ(text_of(with_start_of(text_of(from("a"), 0), from("")), 0), text_of(from("a"), 0));
  EXPECT_EQ(text_of(with_start_of(text_of(from(""), 0), from("b")), 0), text_of(from(""), 0));
  EXPECT_EQ(text_of(with_start_of("", from("b")), 0), text_of({}, 0));
  EXPECT_EQ(text_of(with_start_of("train.init-from=a\n", {}), 0), text_of({}, 0));
}

TEST(Continuation, ValidationsOfOtherDataDoNotCompare) {
  std::vector<config::Setting> settings{{"data.valid", "a.bin", {}},
                                        {"train.valid-batches", "8", {}},
                                        {"train.valid-every", "10", {}}};
  std::string const text = text_of(settings, 0);
  EXPECT_FALSE(validates_otherwise(text, settings));
  settings[2].value = "20";
  EXPECT_FALSE(validates_otherwise(text, settings));
  settings[1].value = "9";
  EXPECT_TRUE(validates_otherwise(text, settings));
  settings[1].value = "8";
  settings[0].value = "b.bin";
  EXPECT_TRUE(validates_otherwise(text, settings));
  EXPECT_FALSE(validates_otherwise("", settings)) << "an older program does not say";
}

TEST(Continuation, ValidationsOfOtherWindowsDoNotCompare) {
  for (bool const all : {true, false}) {
    auto const now = [&](char const* micro_batch) {
      return settings(
          {{"train.valid-batches", all ? "0" : "2"}, {"train.micro-batch", micro_batch}});
    };
    auto const text = text_of(now("8"), 0);
    EXPECT_FALSE(validates_otherwise(text, now("8")));
    EXPECT_EQ(validates_otherwise(text, now("1")), !all);
  }
}

TEST(Continuation, AnotherOrderOfTheDataIsSaid) {
  auto const now = [](char const* sequence, char const* rate) {
    return settings({{"train.sequence", sequence}, {"optimizer.lr", rate}});
  };
  auto const text = text_of(now("1024", "1"), 0);
  EXPECT_EQ(warning_of_order(text, now("1024", "2")), "");
  EXPECT_THAT(warning_of_order(text, now("4096", "1")), HasSubstr("train.sequence has changed"));
  EXPECT_EQ(warning_of_order("", now("4096", "1")), "") << "an older program does not say";
}

TEST(Continuation, ACheckpointOfAnotherRunIsSaid) {
  TemporaryDirectory const folder;
  auto const of = [&](char const* name) {
    return settings({{"run.dir", (folder.path() / name).string()}});
  };
  auto const text = text_of(of("a"), 0);
  EXPECT_EQ(warning_of_other_run(text, of("b")), "") << "it was moved";
  std::filesystem::create_directory(folder.path() / "a");
  folder.write("a/metrics.jsonl", "");
  EXPECT_THAT(warning_of_other_run(text, of("b")),
              AllOf(HasSubstr("/a, and the one in "), HasSubstr("/b goes on from it")));
  EXPECT_EQ(warning_of_other_run(text, of("a")), "");
  std::filesystem::create_directory_symlink(folder.path() / "a", folder.path() / "c");
  EXPECT_EQ(warning_of_other_run(text, of("c")), "") << "one place";

  auto const with_store = [&](char const* name) {
    auto all = of(name);
    all.push_back({"checkpoint.dir", (folder.path() / name / "checkpoints").string(), ""});
    return all;
  };
  EXPECT_EQ(warning_of_other_run(text_of(with_store("a"), 0), with_store("b")), "") << "a copy";
}

TEST(Continuation, TuningAtTheDefaultRateIsSaid) {
  EXPECT_THAT(advice_on_tuning(settings({{"optimizer.lr", "3e-4"}}, "default")),
              AllOf(HasSubstr("optimizer.lr=3e-4 is the default"), HasSubstr("1e-5")));
  EXPECT_EQ(advice_on_tuning(settings({{"optimizer.lr", "3e-4"}}, "--optimizer.lr")), "");
}

TEST(Continuation, DecayInTheGradientOfAdamIsSaid) {
  config::OptimizerConfig optimizer;
  optimizer.kind = kernels::Optimizer::adam;
  optimizer.weight_decay = 0.5F;
  EXPECT_THAT(advice_on_decay(optimizer),
              AllOf(HasSubstr("optimizer.weight-decay=0.5 is part of the gradient (L2)"),
                    HasSubstr("optimizer.kind=adamw")));
  optimizer.weight_decay = 0;
  EXPECT_EQ(advice_on_decay(optimizer), "");
  for (auto const other : {kernels::Optimizer::adamw, kernels::Optimizer::sgd}) {
    optimizer.kind = other;
    optimizer.weight_decay = 0.5F;
    EXPECT_EQ(advice_on_decay(optimizer), "");
  }
}

TEST(Continuation, AWarmUpThatComesTooLateIsSaid) {
  config::RunConfig config;
  config.settings = settings({{"optimizer.warmup-steps", "20"}});
  config.optimizer.warmup_steps = 20;
  EXPECT_THAT(warning_of_warmup("optimizer.warmup-steps=5\n", config, 50),
              AllOf(HasSubstr("counts from step 0, and step 50 is done"),
                    HasSubstr("optimizer.schedule-begin=50")));
  EXPECT_EQ(warning_of_warmup("optimizer.warmup-steps=5\n", config, 19), "");
  EXPECT_EQ(warning_of_warmup("optimizer.warmup-steps=20\n", config, 50), "");
  config.optimizer.schedule_begin = 50;
  EXPECT_EQ(warning_of_warmup("optimizer.warmup-steps=5\n", config, 50), "");
  config.settings = settings({{"optimizer.warmup-steps", "0"}});
  config.optimizer = {};
  EXPECT_EQ(warning_of_warmup("optimizer.warmup-steps=5\n", config, 50), "") << "none is meant";
}

TEST(Continuation, AnotherOrderBySkipsIsSaid) {
  config::RunConfig config;
  EXPECT_EQ(warning_of_skips("", config, 20), "");
  EXPECT_THAT(warning_of_skips("data.skip=5:16\n", config, 20), HasSubstr("come again"));
  EXPECT_EQ(warning_of_skips("data.skip=20:16\n", config, 20), "") << "it never began";
  config.data.skips = {{5, 16}};
  EXPECT_EQ(warning_of_skips("data.skip=5:16\n", config, 20), "");
  EXPECT_EQ(warning_of_skips("", config, 5), "") << "it begins here";
  EXPECT_THAT(warning_of_skips("", config, 20), HasSubstr("nobody named"));
  config.data.skips = {{5, 16}, {20, 4}};
  EXPECT_EQ(warning_of_skips("data.skip=5:16\n", config, 20), "");
}

TEST(Continuation, AnotherPartThatIsHeldOutIsLearned) {
  auto const of = [](std::string const& valid) { return settings({{"data.valid", valid}}); };
  for (auto const& [then, now] :
       {std::pair{"1%", "30%"}, {"30%", "1%"}, {"1%", "v.txt"}, {"v.txt", "1%"}}) {
    EXPECT_EQ(learned_changes(text_of(of(then), 0), of(now)).size(), 1) << then << now;
    EXPECT_THAT(warning_of_order(text_of(of(then), 0), of(now)),
                HasSubstr("another part of the training data"));
  }
  EXPECT_THAT(learned_changes(text_of(of("v.txt"), 0), of("w.txt")), IsEmpty());
  EXPECT_EQ(warning_of_order(text_of(of("1%"), 0), of("1%")), "");
  EXPECT_THAT(describe_changes(text_of(of("5%"), 0), of("5.0 %")), IsEmpty());
  EXPECT_FALSE(validates_otherwise(text_of(of("5%"), 0), of("5.0 %")));
}

TEST(Continuation, ARateThatWouldJumpIsSaidWithWhatGoesOn) {
  config::OptimizerConfig optimizer{
      .lr = 1.0, .schedule = config::RateSchedule::cosine, .min_lr = 0.1};
  double const last = learning_rate(optimizer, 100, 100);
  EXPECT_DOUBLE_EQ(last, 0.1);
  auto const advice = advice_on_rate(optimizer, 300, 100, last);
  // Step 101 of 300: 0.1 + 0.9 (1 + cos(101 pi / 300)) / 2 = 0.7709 by hand.
  EXPECT_THAT(advice, AllOf(HasSubstr("step 100 was taken at 0.1"), HasSubstr("at 0.771"),
                            HasSubstr("7.71 times as high"), HasSubstr("optimizer.lr=0.1"),
                            HasSubstr("optimizer.schedule=cooldown")));
  // What it advises goes on.
  config::OptimizerConfig cooldown{
      .lr = last, .schedule = config::RateSchedule::cooldown, .decay_fraction = 0.2};
  EXPECT_THAT(advice_on_rate(cooldown, 300, 100, last), IsEmpty());
  EXPECT_EQ(learning_rate(cooldown, 300, 101), last);
  EXPECT_THAT(advice_on_rate(optimizer, 300, 100, 0.0), HasSubstr("a low optimizer.lr"));
}

TEST(Continuation, ARateOfTheSameScheduleIsNoJump) {
  for (auto const schedule :
       {config::RateSchedule::constant, config::RateSchedule::linear, config::RateSchedule::cosine,
        config::RateSchedule::wsd, config::RateSchedule::cooldown}) {
    config::OptimizerConfig const optimizer{
        .lr = 1.0, .schedule = schedule, .warmup_steps = 10, .min_lr = 0.1, .decay_fraction = 0.3};
    for (std::int64_t step = 0; step < 101; ++step) {
      double const last = step == 0 ? 0.0 : learning_rate(optimizer, 100, step);
      EXPECT_THAT(advice_on_rate(optimizer, 100, step, last), IsEmpty()) << step;
    }
  }
}

}  // namespace
}  // namespace offstage::train
