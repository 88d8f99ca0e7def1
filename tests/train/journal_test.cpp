#include "train/report/journal.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "config/run_config.hpp"
#include "temporary_directory.hpp"

namespace offstage::train {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class JournalOf : public ::testing::Test {
 protected:
  JournalOf() {
    config_.run_dir = directory_.path().string();
    config_.model = {.layers = 1,
                     .hidden = 8,
                     .heads = 2,
                     .kv_heads = 2,
                     .ffn_hidden = 16,
                     .vocab = 32,
                     .max_sequence = 4};
    config_.train.sequence = 4;
    config_.train.micro_batch = 1;
    config_.train.global_batch = 2;
    config_.train.steps = 1;
    config_.train.log_every = 1;
  }

  /// One step and the end; what was printed.
  std::string tell(bool speaks, StorageStep const& storage, Bytes update_bytes = 0) {
    StepResult result{.loss = 2.0, .update = Seconds{1.0}, .update_bytes = update_bytes};
    result.storage = storage;
    checkpoint::Meta meta;
    meta.step = 1;
    ::testing::internal::CaptureStdout();
    Journal journal{config_, speaks};
    journal.open(0, {}, [] {});
    journal.begin({.step = 0, .time = {}, .ranks = 1, .nodes = {"n1"}}, true, Seconds{0.0});
    journal.step_done({.result = result,
                       .meta = meta,
                       .loss_scale = 1.0,
                       .seconds = Seconds{1.0},
                       .storage = storage},
                      Seconds{1.0});
    journal.conclude({.step = 1, .stop = Stop::none, .total = Seconds{1.0}});
    return ::testing::internal::GetCapturedStdout();
  }
  /// The last one of those that have `key`.
  [[nodiscard]] nlohmann::json last_record(char const* key = "loss") const {
    std::ifstream file{directory_.path() / "metrics.jsonl"};
    nlohmann::json last;
    for (std::string line; std::getline(file, line);) {
      if (auto record = nlohmann::json::parse(line); record.contains(key)) {
        last = std::move(record);
      }
    }
    return last;
  }

  TemporaryDirectory directory_;
  config::RunConfig config_;
};

TEST_F(JournalOf, ARunWithPathsWritesThemToMetricsAndEndTable) {
  auto const text =
      tell(true, {.paths = {{.directory = "/nvme"}}, .misses = 1, .effective_rate = 5e9});
  EXPECT_EQ(last_record()["paths"][0]["path"], "/nvme");
  EXPECT_EQ(last_record()["effective_gb_per_s"], 5.0);
  EXPECT_THAT(text, AllOf(HasSubstr("/nvme"), HasSubstr("effective I/O throughput per update")));
}

TEST_F(JournalOf, ShowsWhatTheModelReachesAndHowMuchOfTheDeviceThatIs) {
  // 22464 operations of one micro-batch (see StepNumbers), two of them in a second.
  auto const text = tell(true, {});
  EXPECT_DOUBLE_EQ(last_record()["tflops"], 44928e-12);
  EXPECT_FALSE(last_record().contains("mfu"));
  EXPECT_THAT(text, ContainsRegex("step +1/1 .* 8 tokens/s  4.49e-08 TFLOP/s  left"));
  EXPECT_THAT(text, ContainsRegex("1 steps, 8 tokens/s, 4.49e-08 TFLOP/s"));
  config_.platform_products = 89856;
  std::filesystem::remove(directory_.path() / "metrics.jsonl");
  tell(true, {});
  EXPECT_DOUBLE_EQ(last_record()["mfu"], 0.5);
}

TEST_F(JournalOf, TheRateOfUpdatesIsThatOfTheirOwnBytes) {
  PathStep path{.directory = "/nvme"};
  path.traffic.read.bytes = 5'000'000;  // activations and spilled gradients with them
  EXPECT_THAT(tell(true, {.paths = {path}}, 3'000'000),
              ContainsRegex("update +1.00 s +100.0 % +3.00 MB/s\n"));
}

TEST_F(JournalOf, ARunWhoseDirectoryIsAnothersWritesNothingMore) {
  config_.run_dir = directory_.path().string();
  Journal journal{config_, true};
  bool is_own = true;
  journal.open(0, {}, [&] {
    if (!is_own) {
      throw IoError{"moved"};
    }
  });
  journal.begin({.step = 0, .time = {}, .ranks = 1, .nodes = {"n1"}}, true, Seconds{0.0});
  journal.validated(0, {}, true, Seconds{1.0}, Seconds{1.0});
  auto const path = directory_.path() / "metrics.jsonl";
  auto const size = std::filesystem::file_size(path);
  is_own = false;
  EXPECT_THROW(journal.validated(0, {}, true, Seconds{1.0}, Seconds{2.0}), IoError);
  journal.failed(0, {.code = ExitCode::io, .text = "moved"}, false, Seconds{2.0});
  journal.sync();
  EXPECT_EQ(std::filesystem::file_size(path), size);
}

TEST_F(JournalOf, ARunInHostMemorySaysNothingOfStorage) {
  auto const text = tell(true, {});
  EXPECT_FALSE(last_record().contains("paths"));
  EXPECT_THAT(text, AllOf(HasSubstr("phase"), Not(HasSubstr("throughput"))));
}

TEST_F(JournalOf, TheEndIsARecordToo) {
  tell(true, {});
  EXPECT_EQ(last_record("end")["end"], "done");
  EXPECT_EQ(last_record("end")["step"], 1);
  EXPECT_EQ(last_record("end")["elapsed_seconds"], 1.0);
}

TEST_F(JournalOf, APredictionIsARecordBeforeTheFirstStepThatHasIt) {
  config_.paths.emplace_back();
  config_.paths[0].directory = "/nvme";
  RunForecast forecast;
  forecast.step.step = Seconds{3.0};
  forecast.step.paths = {{.read = 10, .written = 20}};
  forecast.paths = {{.read = 1e9, .write = 2e9}};
  StepResult const result{.loss = 2.0};
  checkpoint::Meta meta;
  meta.step = 5;
  ::testing::internal::CaptureStdout();
  Journal journal{config_, true};
  journal.open(4, {}, [] {});
  journal.begin({.step = 4, .time = {}, .ranks = 2, .nodes = {"n1"}}, true, Seconds{0.0});
  journal.expect(forecast);
  journal.step_done({.result = result, .meta = meta}, Seconds{1.0});
  ::testing::internal::GetCapturedStdout();
  auto const record = last_record("forecast");
  EXPECT_EQ(record["step"], 4);
  EXPECT_EQ(record["forecast"]["paths"][0]["path"], "/nvme");
  EXPECT_EQ(record["forecast"]["paths"][0]["write_bytes"], 40) << "of both ranks";
  EXPECT_EQ(record["forecast"]["paths"][0]["write_gb_per_s"], 2.0);
}

TEST_F(JournalOf, ARankThatDoesNotSpeakWritesNothing) {
  EXPECT_EQ(tell(false, {.paths = {{.directory = "/nvme"}}}), "");
  EXPECT_FALSE(std::filesystem::exists(directory_.path() / "metrics.jsonl"));
}

TEST(AdviceOnClipping, SaysWhatHelpsWhereMostStepsWereClipped) {
  config::RunConfig config;
  config.overlap = config::Switch::on;
  config.optimizer.clip = 0.5;
  EXPECT_THAT(
      advice_on_clipping({.redone = 40, .clipped = 41, .steps = 50}, config),
      AllOf(HasSubstr("in 41 of 50 steps"), HasSubstr("optimizer.clip=0.5"),
            HasSubstr("longer optimizer.warmup-steps"),
            HasSubstr("40 updates were made again under the next forward; update.overlap=auto")));
  EXPECT_EQ(advice_on_clipping({.redone = 20, .clipped = 25, .steps = 50}, config), "");
  EXPECT_EQ(advice_on_clipping({.redone = 2, .clipped = 2, .steps = 2}, config), "");
}

TEST(AdviceOnClipping, IsForRunsWhoseUpdatesMayBeginUnderBackward) {
  PhaseTimes const times{.clipped = 50, .steps = 50};
  config::RunConfig config;
  EXPECT_EQ(advice_on_clipping(times, config), "") << "auto, and the state is in host memory";
  config.paths.emplace_back();
  EXPECT_THAT(advice_on_clipping(times, config),
              AllOf(HasSubstr("in 50 of 50 steps"), Not(HasSubstr("under the next"))));
  EXPECT_THAT(advice_on_clipping({.redone = 48, .clipped = 50, .steps = 50}, config),
              AllOf(HasSubstr("48 updates were made again under the next forward, where that"),
                    Not(HasSubstr("update.overlap"))));
  config.overlap = config::Switch::off;
  EXPECT_EQ(advice_on_clipping(times, config), "");
}

TEST_F(JournalOf, ASaveStoodStillForTheUpdateBeforeItToo) {
  ::testing::internal::CaptureStdout();
  Journal journal{config_, true};
  journal.open(0, {}, [] {});
  journal.begin({.step = 0, .time = {}, .ranks = 1, .nodes = {"n1"}}, true, Seconds{0.0});
  journal.saved(1,
                {.path = "run/step-1",
                 .seconds = Seconds{0.25},
                 .stood_still = Seconds{0.125},
                 .waited = Seconds{2.0},
                 .in_two_parts = true},
                2, Seconds{3.0});
  journal.sync();
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              HasSubstr("saved run/step-1 in 0.2 s, training stood still for 2.1 s"));
  EXPECT_EQ(last_record("saved")["stood_still_seconds"], 2.125);
  EXPECT_EQ(last_record("saved")["seconds"], 0.25);
}

TEST_F(JournalOf, ClippedStepsAreCounted) {
  config_.overlap = config::Switch::on;
  config_.optimizer.clip = 1.0;
  StepResult const result{.loss = 2.0, .grad_norm = 1.5, .clipped = true};
  checkpoint::Meta meta;
  ::testing::internal::CaptureStdout();
  Journal journal{config_, true};
  journal.open(0, {}, [] {});
  journal.begin({.step = 0, .time = {}, .ranks = 1, .nodes = {"n1"}}, true, Seconds{0.0});
  for (meta.step = 1; meta.step <= 10; ++meta.step) {
    journal.step_done({.result = result, .meta = meta}, Seconds{1.0});
  }
  journal.conclude({.step = 10, .stop = Stop::none, .total = Seconds{1.0}});
  EXPECT_THAT(
      ::testing::internal::GetCapturedStdout(),
      HasSubstr(
          "gradients were clipped in 10 of 10 steps: their norm was above optimizer.clip=1. "));
}

}  // namespace
}  // namespace offstage::train
