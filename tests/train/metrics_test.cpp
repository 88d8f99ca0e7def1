#include "train/report/metrics.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.hpp"
#include "limits.hpp"
#include "temporary_directory.hpp"

namespace offstage::train {
namespace {

class Metrics : public ::testing::Test {
 protected:
  [[nodiscard]] std::vector<std::string> lines() const {
    std::ifstream file{path_};
    std::vector<std::string> all;
    for (std::string line; std::getline(file, line);) {
      all.push_back(line);
    }
    return all;
  }
  void put(std::string const& text) const { std::ofstream{path_, std::ios::app} << text; }
  [[nodiscard]] std::string aside() const {
    return directory_.path().string() + "/passed-over-metrics.jsonl";
  }

  TemporaryDirectory directory_;
  std::string path_ = directory_.path().string() + "/metrics.jsonl";
};

StepRecord record(std::int64_t step) {
  return {.step = step,
          .loss = 0.1 + 0.2,
          .grad_norm = 1.0 / 3.0,
          .learning_rate = 3e-4,
          .tokens = 1LL << 40,
          .step_seconds = Seconds{0.5}};
}

TEST_F(Metrics, AStepIsOneLineWithTheKeysInOrder) {
  MetricsFile file{path_};
  file.write(record(7));
  ASSERT_EQ(lines().size(), 1U);
  auto const parsed = nlohmann::ordered_json::parse(lines()[0]);
  std::vector<std::string> keys;
  for (auto const& [key, value] : parsed.items()) {
    keys.push_back(key);
  }
  EXPECT_THAT(keys, ::testing::ElementsAre("step", "loss", "grad_norm", "learning_rate", "tokens",
                                           "step_seconds", "forward_seconds", "backward_seconds",
                                           "update_seconds", "elapsed_seconds", "read_bytes",
                                           "write_bytes"));
  EXPECT_EQ(parsed["tokens"].get<std::int64_t>(), 1LL << 40);
}

TEST_F(Metrics, AStepSaysWhatWasPredictedAndHowWellProductsWereUsedWhereThatIsKnown) {
  MetricsFile file{path_};
  auto step = record(1);
  step.tflops = 1.5;
  file.write(step);
  step.predicted = Seconds{0.25};
  step.mfu = 0.75;
  file.write(step);
  auto const first = nlohmann::json::parse(lines()[0]);
  EXPECT_EQ(first["tflops"], 1.5);
  EXPECT_FALSE(first.contains("mfu"));
  EXPECT_FALSE(first.contains("predicted_step_seconds"));
  auto const second = nlohmann::json::parse(lines()[1]);
  EXPECT_EQ(second["predicted_step_seconds"], 0.25);
  EXPECT_EQ(second["mfu"], 0.75);
}

TEST_F(Metrics, AStepWhoseActivationsLeaveSaysHowMuchAndForHowLongThatWasWaitedFor) {
  MetricsFile file{path_};
  auto step = record(7);
  step.activations = {.out = 56, .back = 55, .waited = Seconds{0.25}};
  file.write(step);
  auto const parsed = nlohmann::json::parse(lines().at(0));
  EXPECT_EQ(parsed["activation_out_bytes"], 56);
  EXPECT_EQ(parsed["activation_back_bytes"], 55);
  EXPECT_EQ(parsed["activation_wait_seconds"], 0.25);
}

TEST_F(Metrics, AStepWithStoragePathsSaysWhatEachDid) {
  MetricsFile file{path_};
  auto stored = record(1);
  stored.storage = {.paths = {{.directory = "/nvme",
                               .traffic = {.read = {.bytes = 6'000'000'000,
                                                    .seconds = Seconds{2.0},
                                                    .waited = Seconds{0.25},
                                                    .longest_wait = Seconds{0.125}},
                                           .write = {.bytes = 1'000'000'000,
                                                     .seconds = Seconds{1.0},
                                                     .waited = Seconds{0.5},
                                                     .longest_wait = Seconds{0.0625}}},
                               .resident_bytes = 12},
                              {.directory = "/caf\xe9",
                               .emulated = true,
                               .traffic = {.read = {.bytes = 5}, .write = {.bytes = 7}}}},
                    .nodes = 2,
                    .seconds = Seconds{3.0},
                    .hits = 5,
                    .misses = 7,
                    .host_bytes = 99,
                    .effective_rate = 4e9};
  file.write(stored);
  auto const parsed = nlohmann::json::parse(lines().at(0));
  EXPECT_EQ(parsed["effective_gb_per_s"], 4.0);
  EXPECT_EQ(parsed["read_bytes"], 6'000'000'005);
  EXPECT_EQ(parsed["write_bytes"], 1'000'000'007);
  EXPECT_EQ(parsed["hits"], 5);
  EXPECT_EQ(parsed["misses"], 7);
  EXPECT_EQ(parsed["host_bytes"], 99);
  auto const& paths = parsed["paths"];
  ASSERT_EQ(paths.size(), 2U);
  EXPECT_EQ(paths[0], (nlohmann::json{{"path", "/nvme"},
                                      {"read_bytes", 6'000'000'000},
                                      {"write_bytes", 1'000'000'000},
                                      {"read_gb_per_s", 3.0},
                                      {"write_gb_per_s", 1.0},
                                      {"busy", 0.5},
                                      {"lock_wait_seconds", 0.75},
                                      {"longest_wait_seconds", 0.125},
                                      {"resident_bytes", 12}}));
  EXPECT_EQ(paths[1]["emulated"], true);
  EXPECT_TRUE(paths[1]["read_gb_per_s"].is_null());
  EXPECT_EQ(paths[1]["busy"], 0.0);
}

TEST_F(Metrics, ADirectorySNameReachesTheFileInAsciiAlone) {
  MetricsFile file{path_};
  auto stored = record(1);
  std::string const nasty = "/a\n\x1b\x7f\xc2\x9b\xe2\x80\xae";
  stored.storage = {.paths = {{.directory = nasty}}, .nodes = 1, .seconds = Seconds{1.0}};
  file.write(stored);
  ASSERT_EQ(lines().size(), 1U);
  EXPECT_TRUE(std::ranges::all_of(lines()[0], [](char c) { return c >= ' ' && c <= '~'; }));
  EXPECT_EQ(nlohmann::json::parse(lines()[0])["paths"][0]["path"].get<std::string>(), nasty);
}

TEST_F(Metrics, AnEffectiveThroughputThatThereIsNotIsNull) {
  MetricsFile file{path_};
  auto skipped = record(1);
  skipped.storage.paths.resize(1);
  file.write(skipped);
  EXPECT_TRUE(nlohmann::json::parse(lines().at(0))["effective_gb_per_s"].is_null());
}

TEST_F(Metrics, DoublesComeBackBitForBit) {
  MetricsFile file{path_};
  file.write(record(1));
  auto const parsed = nlohmann::json::parse(lines().at(0));
  EXPECT_EQ(parsed["loss"].get<double>(), 0.1 + 0.2);
  EXPECT_EQ(parsed["grad_norm"].get<double>(), 1.0 / 3.0);
}

TEST_F(Metrics, WhatIsNotFiniteBecomesNull) {
  MetricsFile file{path_};
  auto bad = record(1);
  bad.loss = std::numeric_limits<double>::quiet_NaN();
  bad.grad_norm = std::numeric_limits<double>::infinity();
  bad.skipped = true;
  file.write(bad);
  auto const parsed = nlohmann::json::parse(lines().at(0));
  EXPECT_TRUE(parsed["loss"].is_null());
  EXPECT_TRUE(parsed["grad_norm"].is_null());
  EXPECT_EQ(parsed["skipped"], true);
}

TEST_F(Metrics, ValidationRecordsCarryStepAndLoss) {
  MetricsFile file{path_};
  file.write_validation(5, {.all = {2.5, 1}, .sources = {}}, Seconds{1.5});
  EXPECT_EQ(lines().at(0), R"({"step":5,"valid_loss":2.5,"elapsed_seconds":1.5})");
}

TEST_F(Metrics, ValidationRecordsOfSeveralSourcesHaveEachOfThem) {
  MetricsFile file{path_};
  double const none = std::numeric_limits<double>::quiet_NaN();
  file.write_validation(5, {.all = {2.5, 6}, .sources = {{"x/a", {2.5, 6}}, {"b", {none, 0}}}},
                        Seconds{1.5});
  auto const parsed = nlohmann::json::parse(lines().at(0));
  EXPECT_EQ(parsed["valid_loss"], 2.5);
  EXPECT_EQ(parsed["valid_losses"].dump(),
            R"([{"loss":2.5,"path":"x/a","targets":6},{"loss":null,"path":"b","targets":0}])");
}

TEST_F(Metrics, AStartSaysWhereItIsAndWhen) {
  MetricsFile file{path_};
  StartRecord start{.step = 3,
                    .time = slurm::TimePoint{std::chrono::seconds{1'763'745'600}},
                    .ranks = 2,
                    .nodes = {"n1", "n2"}};
  file.write_start(start);
  start.job = slurm::Job{.id = "4711", .name = "caf\xe9", .restart_count = 1};
  file.write_start(start);
  EXPECT_EQ(lines().at(0),
            R"({"start":3,"time":"2025-11-21T17:20:00Z","ranks":2,"nodes":["n1","n2"]})");
  auto const in_a_job = nlohmann::json::parse(lines().at(1));
  EXPECT_EQ(in_a_job["job"], "4711");
  EXPECT_EQ(in_a_job["restart_count"], 1);
  EXPECT_FALSE(in_a_job.contains("array_task"));
}

TEST_F(Metrics, AStartSaysWhatMemoryAndPathsCan) {
  MetricsFile file{path_};
  file.write_start({.step = 0,
                    .time = {},
                    .ranks = 1,
                    .nodes = {"n1"},
                    .parameters = 1000,
                    .memory = {.host_limit = 5, .host_planned = 3, .host_libraries = 1},
                    .paths = {{.directory = "/nvme", .read = 2e9, .write = 0.0},
                              {.directory = "/pfs", .sharing_transfers = 4}}});
  auto const parsed = nlohmann::json::parse(lines().at(0));
  EXPECT_EQ(parsed["parameters"], 1000);
  EXPECT_EQ(parsed["host_memory_limit"], 5);
  EXPECT_TRUE(parsed["device_memory_limit"].is_null());
  EXPECT_FALSE(parsed.contains("host_memory_peak"));
  EXPECT_EQ(parsed["paths"][0]["path"], "/nvme");
  EXPECT_EQ(parsed["paths"][0]["can_read_gb_per_s"], 2.0);
  EXPECT_TRUE(parsed["paths"][0]["can_write_gb_per_s"].is_null());
  EXPECT_FALSE(parsed["paths"][0].contains("sharing_transfers"));
  EXPECT_EQ(parsed["paths"][1]["sharing_transfers"], 4);
}

TEST_F(Metrics, SavesAndForecastsComeWithTheNextLine) {
  MetricsFile file{path_};
  file.add(SaveRecord{.step = 4,
                      .level = 1,
                      .seconds = Seconds{2.0},
                      .stood_still = Seconds{0.5},
                      .bytes = 7,
                      .elapsed = Seconds{9.0}});
  file.add(ForecastRecord{.step = 4,
                          .seconds = Seconds{3.0},
                          .paths = {{.directory = "/nvme", .read = 6, .read_rate = 1e9}}});
  EXPECT_TRUE(lines().empty());
  file.write_validation(4, {.all = {1.0, 1}, .sources = {}}, Seconds{});
  ASSERT_EQ(lines().size(), 3U);
  EXPECT_EQ(lines()[0], R"({"step":4,"saved":1,"seconds":2.0,"stood_still_seconds":0.5,"bytes":7,)"
                        R"("elapsed_seconds":9.0})");
  auto const parsed = nlohmann::json::parse(lines()[1]);
  EXPECT_EQ(parsed["step"], 4);
  EXPECT_EQ(parsed["forecast"]["step_seconds"], 3.0);
  EXPECT_EQ(parsed["forecast"]["paths"][0]["read_gb_per_s"], 1.0);
  EXPECT_TRUE(parsed["forecast"]["paths"][0]["write_gb_per_s"].is_null());
  file.add(SaveRecord{.step = 5, .level = 2});
  file.sync();
  EXPECT_EQ(nlohmann::json::parse(lines().at(3))["saved"], 2);
}

TEST_F(Metrics, AnEndSaysWhyItEndedAndWhatMemoryItTook) {
  MetricsFile file{path_};
  file.write_end({.step = 5,
                  .end = "done",
                  .reason = "patience",
                  .exit = ExitCode::done,
                  .elapsed = Seconds{1.0},
                  .memory = {.device_limit = 9, .host_peak = 4, .device_peak = 8},
                  .best = Validation{3, 2.5},
                  .advice = {"buy \"disks\""}});
  auto const parsed = nlohmann::json::parse(lines().at(0));
  EXPECT_EQ(parsed["step"], 5);
  EXPECT_EQ(parsed["end"], "done");
  EXPECT_EQ(parsed["reason"], "patience");
  EXPECT_EQ(parsed["exit"], 0);
  EXPECT_EQ(parsed["best_step"], 3);
  EXPECT_EQ(parsed["best_loss"], 2.5);
  EXPECT_EQ(parsed["host_memory_peak"], 4);
  EXPECT_EQ(parsed["device_memory_limit"], 9);
  EXPECT_EQ(parsed["advice"][0], "buy \"disks\"");
}

TEST_F(Metrics, EndsStayWithTheirStarts) {
  std::string const start = R"({"start":0})", step = R"({"step":1})";
  std::string const failed = R"({"step":4,"end":"failed"})";
  put(start + '\n' + step + "\n{\"step\":2}\n" + failed + '\n');
  put("{\"start\":2}\n{\"step\":3}\n" + failed + '\n');
  MetricsFile const file{path_, {1}};
  EXPECT_THAT(lines(), ::testing::ElementsAre(start, step, failed)) << "the start after 2 is gone";
}

TEST_F(Metrics, StartsUpToTheStepStay) {
  std::string const first = R"({"start":0})";
  put(first + "\n{\"step\":1}\n{\"start\":1}\n{\"step\":2}\n{\"start\":2}\n");
  { MetricsFile const file{path_, {1}}; }
  EXPECT_THAT(lines(), ::testing::ElementsAre(first, "{\"step\":1}", "{\"start\":1}"));
  MetricsFile const afresh{path_};
  EXPECT_THAT(lines(), ::testing::ElementsAre(first));
}

TEST_F(Metrics, ResumingKeepsRecordsUpToTheStep) {
  {
    MetricsFile file{path_};
    for (std::int64_t step = 1; step <= 4; ++step) {
      file.write(record(step));
      file.write_validation(step, {.all = {1.0, 1}, .sources = {}}, Seconds{});
    }
  }
  auto const before = lines();
  MetricsFile file{path_, {2}};
  EXPECT_EQ(lines(), (std::vector<std::string>{before.begin(), before.begin() + 4}));
  file.write(record(3));
  EXPECT_EQ(lines().back(), before[4]);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
}

TEST_F(Metrics, ResumingKeepsTheOrderOfMoreThanIsWrittenAtOnce) {
  constexpr int steps = 60'000;  // more than a MiB
  std::string text;
  for (int step = 1; step <= steps; ++step) {
    text += fmt::format("{{\"step\":{},\"loss\":2.5}}\n", step);
  }
  put(text);
  auto const before = lines();
  MetricsFile const file{path_, {steps - 1}};
  EXPECT_EQ(lines(), (std::vector<std::string>{before.begin(), before.end() - 1}));
}

TEST_F(Metrics, AFreshStartKeepsNothing) {
  put("{\"step\":1}\n");
  MetricsFile const file{path_};
  EXPECT_TRUE(lines().empty());
}

TEST_F(Metrics, ATornLastLineIsDropped) {
  put("{\"step\":1}\n{\"step\":2,\"lo");
  MetricsFile file{path_, {9}};
  EXPECT_THAT(lines(), ::testing::ElementsAre("{\"step\":1}"));
}

TEST_F(Metrics, ALastLineThatLacksItsNewlineAloneIsMended) {
  put("{\"step\":1}\n{\"step\":2}");
  MetricsFile file{path_, {9}};
  file.write_validation(3, {.all = {1.0, 1}, .sources = {}}, Seconds{2.0});
  EXPECT_THAT(lines(),
              ::testing::ElementsAre("{\"step\":1}", "{\"step\":2}",
                                     R"({"step":3,"valid_loss":1.0,"elapsed_seconds":2.0})"));
}

TEST_F(Metrics, LinesThatAreNoRecordsAreDropped) {
  put("\n5\n[1]\n{\"step\":\"1\"}\n{\"loss\":1}\n{\"step\":1}\n");
  MetricsFile const file{path_, {9}};
  EXPECT_THAT(lines(), ::testing::ElementsAre("{\"step\":1}"));
}

TEST_F(Metrics, AFileThatNeedsNoCutIsNotReplaced) {
  put("{\"step\":1}\n");
  std::filesystem::create_hard_link(path_, path_ + ".link");
  MetricsFile const file{path_, {1}};
  EXPECT_EQ(std::filesystem::hard_link_count(path_), 2U);
}

TEST_F(Metrics, AKillBetweenTheTwoRenamesOfACutLosesNothing) {
  put("{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
  std::filesystem::rename(path_, aside());
  std::ofstream{path_ + ".new"} << "{\"step\":1}\n{\"step\":2}\n";
  MetricsFile const file{path_, {.step = 2, .is_named = true}};
  EXPECT_THAT(lines(), ::testing::ElementsAre("{\"step\":1}", "{\"step\":2}"));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
  EXPECT_TRUE(std::filesystem::exists(aside()));
  EXPECT_FALSE(std::filesystem::exists(aside() + ".2"));
}

TEST_F(Metrics, StepsBehindWhichACheckpointWasSavedAreSetAside) {
  std::string const old = "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"saved\":2}\n";
  put(old);
  { MetricsFile const file{path_, {2}}; }
  EXPECT_EQ(lines().size(), 3);
  EXPECT_FALSE(std::filesystem::exists(aside()));
  {
    testing::internal::CaptureStderr();
    MetricsFile const file{path_, {1}};
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                ::testing::HasSubstr("is checkpoint.dir another one?"));
  }
  EXPECT_THAT(lines(), ::testing::ElementsAre("{\"step\":1}"));
  EXPECT_EQ(std::filesystem::file_size(aside()), old.size());
  put("{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"saved\":1}\n");
  MetricsFile const file{path_, {1}};
  EXPECT_FALSE(std::filesystem::exists(aside() + ".2")) << "level 1 goes with its node";
}

TEST_F(Metrics, OfAStartWithoutACheckpointGiveWayToThoseOfTheOneThatSaved) {
  std::string const first = R"({"start":0})", one = R"({"step":1,"loss":5.1})",
                    two = R"({"step":2,"loss":4.3})", start = R"({"start":1})",
                    other = R"({"step":2,"loss":4.2})", third = R"({"step":3,"loss":4.1})";
  auto const put_all = [&](std::string const& path, std::vector<std::string> const& all) {
    std::ofstream file{path};
    for (std::string const& line : all) {
      file << line << '\n';
    }
  };
  put_all(aside(), {first, one, two});
  put_all(path_, {first, one, start, other, third});
  MetricsPoint const saved{.step = 2, .loss = 4.3};
  {
    testing::internal::CaptureStderr();
    MetricsFile const file{path_, saved};
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                ::testing::AllOf(::testing::HasSubstr("a start that left no checkpoint"),
                                 ::testing::HasSubstr(aside() + " is in its place")));
    EXPECT_NEAR(file.smoothed_loss(), (0.9 * 5.1 + 4.3) / 1.9, 1e-12);
  }
  EXPECT_THAT(lines(), ::testing::ElementsAre(first, one, two));
  EXPECT_TRUE(std::filesystem::exists(aside() + ".2"));
  { MetricsFile const file{path_, saved}; }
  EXPECT_FALSE(std::filesystem::exists(aside() + ".3")) << "all is well now";
  // A start that ended before the step.
  put_all(path_, {first, one, start});
  { MetricsFile const file{path_, saved}; }
  EXPECT_THAT(lines(), ::testing::ElementsAre(first, one, two));
  // Nobody has the records of that step, or the file was moved away.
  for (std::string const& name : {aside(), aside() + ".2", aside() + ".3"}) {
    std::filesystem::remove(name);
  }
  put_all(path_, {first, one, start, other});
  { MetricsFile const file{path_, saved}; }
  EXPECT_TRUE(lines().empty());
  std::filesystem::remove(path_);
  std::filesystem::remove(aside());
  MetricsFile const afresh{path_, saved};
  EXPECT_TRUE(lines().empty());
  EXPECT_FALSE(std::filesystem::exists(aside()));
}

TEST_F(Metrics, AMissingDirectoryIsAnIoErrorThatNamesThePath) {
  auto const path = directory_.path().string() + "/none/metrics.jsonl";
  try {
    MetricsFile const file{path};
    FAIL();
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(),
                ::testing::AllOf(::testing::HasSubstr("run.dir"), ::testing::HasSubstr(path)));
  }
}

TEST_F(Metrics, LinesWaitWhereADeviceIsFull) {
  MetricsFile file{path_};
  file.write(record(1));
  EXPECT_FALSE(file.lacks_lines());
  {
    FileSize const full{static_cast<Bytes>(lines()[0].size()) + 100};
    file.write(record(2));
    file.write_validation(2, {.all = {3.0, 1}, .sources = {}}, {});
    file.sync();
    EXPECT_TRUE(file.lacks_lines());
    EXPECT_THROW(file.write_end({.step = 2, .end = "done"}), IoError);
  }
  file.write(record(3));
  EXPECT_FALSE(file.lacks_lines());
  std::vector<std::string> steps;
  for (auto const& line : lines()) {
    steps.push_back(line.substr(0, line.find(',', line.find(',') + 1)));
  }
  EXPECT_THAT(steps, ::testing::ElementsAre(
                         R"({"step":1,"loss":0.30000000000000004)",
                         R"({"step":2,"loss":0.30000000000000004)", R"({"step":2,"valid_loss":3.0)",
                         R"({"step":2,"end":"done")", R"({"step":3,"loss":0.30000000000000004)"));
}

TEST_F(Metrics, NotMoreLinesWaitThanMemoryShallHold) {
  MetricsFile file{path_};
  FileSize const full{1};
  auto many = record(1);
  many.storage.paths.resize(20'000);
  file.write(many);
  EXPECT_TRUE(file.lacks_lines());
  EXPECT_THROW(
      {
        for (int i = 0; i < 20; ++i) {
          file.write(many);
        }
      },
      IoError);
}

TEST_F(Metrics, AreNeverWrittenThroughALinkNorIntoAPipe) {
  auto const target = directory_.write("target", "another's");
  auto const message = [&] {
    try {
      MetricsFile{path_}.write(record(1));
    } catch (IoError const& error) {
      return std::string{error.what()};
    }
    return std::string{"written"};
  };
  std::filesystem::create_symlink(target, path_ + ".new");
  EXPECT_THAT(message(), ::testing::HasSubstr(path_ + ".new: it is a symbolic link"));
  std::filesystem::remove(path_ + ".new");
  std::filesystem::remove(path_);
  std::filesystem::create_symlink(target, path_);
  EXPECT_THAT(message(),
              ::testing::HasSubstr("run.dir: cannot open " + path_ + ": it is a symbolic link"));
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(message(), ::testing::HasSubstr(path_ + ": it is no regular file"));
  std::ifstream file{target};
  EXPECT_EQ((std::string{std::istreambuf_iterator<char>{file}, {}}), "another's");
}

TEST_F(Metrics, SyncKeepsWhatIsThere) {
  MetricsFile file{path_};
  file.write(record(1));
  auto const before = lines();
  file.sync();
  EXPECT_EQ(lines(), before);
}

TEST_F(Metrics, AFileThatIsGoneWithItsDirectoryIsSaidAndEndsNothing) {
  auto const folder = directory_.path() / "run";
  std::filesystem::create_directory(folder);
  MetricsFile file{(folder / "metrics.jsonl").string()};
  std::filesystem::remove_all(folder);
  ::testing::internal::CaptureStderr();
  EXPECT_NO_THROW(file.sync());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::HasSubstr("the next save tries again"));
}

}  // namespace
}  // namespace offstage::train
