#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "cli/policy_files.hpp"
#include "options_fixture.hpp"
#include "state/model_shape.hpp"
#include "train/forecast/chosen.hpp"

namespace offstage::cli {
namespace {

std::vector<std::string> files_of(std::string const& kind) {
  std::vector<std::string> files;
  for (auto const& entry :
       std::filesystem::directory_iterator{std::string{OFFSTAGE_CONFIGS} + "/" + kind}) {
    files.push_back(entry.path().string());
  }
  return files;
}

TEST(Configs, EveryModelLacksOnlyRunDataAndSteps) {
  auto const files = files_of("models");
  EXPECT_FALSE(files.empty());
  for (std::string const& file : files) {
    EXPECT_NO_THROW(static_cast<void>(parse_train_options(
        {"--config", file, "--run.dir=r", "--data.train=t", "--train.steps=2"})))
        << file;
  }
}

/// The keys that the plan may decide.
std::string left_to_plan(config::RunConfig const& config) {
  return fmt::format("{} {} {} {} {} {} {} {} {}", config.plan.choose, train::leaves_home(config),
                     train::leaves_sharding(config), train::leaves_schedule(config),
                     train::leaves_activations(config), train::leaves_overlap(config),
                     train::leaves_share(config), train::leaves_resident(config),
                     config.storage.most_cache);
}

TEST(Configs, EveryRunLacksOnlyPaths) {
  auto const files = files_of("runs");
  EXPECT_FALSE(files.empty());
  for (std::string const& file : files) {
    EXPECT_NO_THROW(static_cast<void>(
        parse_train_options({"--config", file, "--run.dir=r", "--data.train=t", "--data.valid=v"})))
        << file;
  }
}

std::string text_of(std::string const& file) {
  std::ifstream in{file};
  return {std::istreambuf_iterator<char>{in}, {}};
}

config::RunConfig parse_with(std::string const& file, std::vector<std::string> const& more = {}) {
  std::vector<std::string> arguments{"--config",          file,
                                     "--run.dir=r",       "--data.train=t",
                                     "--train.steps=2",   "--model.layers=1",
                                     "--model.heads=4",   "--model.hidden=64",
                                     "--model.vocab=256", "--model.family=llama"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return parse_train_options(arguments);
}

TEST(Configs, TheGainOfTheOwnPolicyIsThatOfItsKeys) {
  auto const policy = std::string{OFFSTAGE_CONFIGS} + "/policies/offstage.cfg";
  auto const model = std::string{OFFSTAGE_CONFIGS} + "/models/dos-13b.cfg";
  for (std::vector<std::string> const& given :
       {std::vector<std::string>{}, {"--parameters.home=host", "--update.overlap=off"}}) {
    auto config = parse_with(model, given);
    EXPECT_NE(left_to_plan(config), left_to_plan(parse_with(policy, given)));
    train::leave_to_plan(config);
    EXPECT_EQ(left_to_plan(config), left_to_plan(parse_with(policy, given)));
  }
}

/// mlp-40b.cfg and the like: Table 2 of either paper, and Table 4 of Fuyou.
TEST(Configs, ModelsOfThePapersHaveAsManyParametersAsTheirNamesAndCommentsSay) {
  int models = 0;
  for (std::string const& file : files_of("models")) {
    std::string const name = std::filesystem::path{file}.stem().string();
    std::string const paper = name.substr(0, name.find('-'));
    if (paper != "mlp" && paper != "dos" && paper != "fuyou") {
      continue;
    }
    ++models;
    double const named = std::stod(name.substr(paper.size() + 1));
    auto const config =
        parse_train_options({"--config", file, "--run.dir=r", "--data.train=t", "--train.steps=2"});
    double const billions =
        static_cast<double>(state::count_parameters(state::layers_of(config.model))) / 1e9;
    EXPECT_NEAR(billions, named, 0.04 * named) << name;
    EXPECT_NE(text_of(file).find(fmt::format("{:.1f} B parameters", billions)), std::string::npos)
        << name << " has " << billions << " B";
  }
  EXPECT_EQ(models, 20);
}

TEST(Configs, PlatformsHaveThePathsOfMlpOffloadsTable1) {
  auto const rates = [](std::string const& name) {
    std::vector<double> all;
    for (auto const& path :
         parse_with(std::string{OFFSTAGE_CONFIGS} + "/platforms/" + name + ".cfg").paths) {
      all.push_back(std::round(path.read_rate / 1e8));
      all.push_back(std::round(path.write_rate / 1e8));
      EXPECT_EQ(path.duplex, tiers::Duplex::half);
    }
    return all;
  };
  EXPECT_EQ(rates("jlse-h100"), (std::vector<double>{69, 53, 36, 36}));
  EXPECT_EQ(rates("polaris"), (std::vector<double>{135, 48, 69, 137}));
}

TEST(Configs, PlatformsHaveWhatThePapersGiveAndNameWhatTheyDoNot) {
  auto const files = files_of("platforms");
  EXPECT_EQ(files.size(), 5U);
  for (std::string const& file : files) {
    auto const config = parse_with(file);
    EXPECT_GT(config.device.memory, 0) << file;
    EXPECT_GT(config.host_memory, 0) << file;
    EXPECT_GT(config.platform.host_to_device, 0.0) << file;
    std::string const text = text_of(file);
    std::string const not_given = text.substr(text.find("# not published: "));
    for (auto const& [key, rate] : {std::pair{"cpu-update", config.platform.cpu_update},
                                    {"device-update", config.platform.device_update},
                                    {"host-memory", config.platform.host_memory},
                                    {"products", config.platform_products},
                                    {"host-sum", config.platform_passes.host_sum}}) {
      EXPECT_EQ(rate > 0.0,
                not_given.substr(0, not_given.find("\n\n")).find(key) == std::string::npos)
          << file << ": " << key;
    }
  }
  auto const v100 = parse_with(std::string{OFFSTAGE_CONFIGS} + "/platforms/v100.cfg");
  EXPECT_EQ(v100.platform.cpu_update, 2e9);
  EXPECT_EQ(v100.platform.device_update, 35e9);
  EXPECT_EQ(v100.platform.host_to_device, 3e9 * sizeof(float));
  EXPECT_TRUE(v100.paths.empty());
  auto const fuyou = [](std::string const& gpu) {
    return parse_with(std::string{OFFSTAGE_CONFIGS} + "/platforms/fuyou-" + gpu + ".cfg")
        .platform_products;
  };
  EXPECT_NEAR(fuyou("4090"), 87e12 / 0.53, 1e12);
  EXPECT_NEAR(fuyou("a100"), 172e12 / 0.86, 1e12);
}

TEST(Configs, PoliciesSetThePrinciplesOneByOne) {
  EXPECT_EQ(files_of("policies").size(), 6U);
  std::string const policies = std::string{OFFSTAGE_CONFIGS} + "/policies/";
  auto const zero3 = parse_with(policies + "zero3.cfg", {"--tiers.path=/a"});
  EXPECT_EQ(zero3.storage.exclusive, config::Switch::off);
  EXPECT_TRUE(zero3.storage.flush_fp32);
  EXPECT_EQ(zero3.storage.order, plan::UpdateOrder::ascending);
  EXPECT_EQ(zero3.storage.evict, plan::Evict::oldest);
  EXPECT_EQ(zero3.storage.split.rule, plan::SplitRule::first);
  EXPECT_EQ(zero3.share.transfers, plan::Transfers::blocking);
  EXPECT_EQ(zero3.share.device_share, 0.0);
  EXPECT_EQ(zero3.share.device_resident, 0.0);
  auto const offstage = parse_with(policies + "offstage.cfg");
  EXPECT_TRUE(offstage.plan.choose);
  EXPECT_TRUE(offstage.home_is_open);
  EXPECT_TRUE(offstage.share.resident_is_open);
  EXPECT_FALSE(offstage.share.device_share.has_value());
  EXPECT_EQ(offstage.overlap, config::Switch::automatic);
  EXPECT_EQ(offstage.train.schedule, config::LayerSchedule::automatic);
  EXPECT_EQ(offstage.train.activations.rule, activations::Policy::Rule::automatic);
  EXPECT_LT(offstage.storage.most_cache, 0);
  auto const twinflow = parse_with(policies + "twinflow.cfg");
  EXPECT_EQ(twinflow.share.transfers, plan::Transfers::blocking);
  EXPECT_EQ(twinflow.share.device_share, 0.0);
  EXPECT_EQ(twinflow.share.device_resident, 0.2);
  auto const dos = parse_with(policies + "dos.cfg");
  EXPECT_EQ(dos.share.transfers, plan::Transfers::overlap);
  EXPECT_EQ(dos.share.device_share, std::nullopt);
  auto const mlp = parse_with(policies + "mlp.cfg", {"--tiers.path=/a", "--tiers.path=/b"});
  EXPECT_EQ(mlp.storage.exclusive, config::Switch::on);
  EXPECT_FALSE(mlp.storage.flush_fp32);
  EXPECT_EQ(mlp.storage.order, plan::UpdateOrder::alternate);
  EXPECT_EQ(mlp.storage.evict, plan::Evict::oldest);
  EXPECT_EQ(mlp.storage.split.rule, plan::SplitRule::paper);
  EXPECT_FALSE(mlp.numerics.accumulate_fp32);
  EXPECT_EQ(mlp.share.device_share, 0.0);
  auto const fuyou = parse_with(policies + "fuyou.cfg", {"--tiers.path=/a"});
  EXPECT_EQ(fuyou.overlap, config::Switch::on);
  EXPECT_EQ(fuyou.parameter_home, parameters::Home::storage);
  EXPECT_EQ(fuyou.train.activations.rule, activations::Policy::Rule::automatic);
  for (auto const* paper : {&zero3, &twinflow, &dos, &mlp, &fuyou}) {
    EXPECT_EQ(paper->storage.split_parameters, config::Switch::off);
  }
  for (auto const* other : {&zero3, &twinflow, &dos, &mlp}) {
    EXPECT_EQ(other->overlap, config::Switch::off);
  }
  EXPECT_EQ(zero3.share.device_gradients, 0);
  EXPECT_EQ(twinflow.share.device_gradients, 0);
  EXPECT_EQ(dos.share.device_gradients, std::nullopt);
}

TEST(Configs, TheProgramHasThePoliciesAsTheirFilesAre) {
  auto const files = files_of("policies");
  ASSERT_EQ(policy_files().size(), files.size());
  for (PolicyFile const& policy : policy_files()) {
    EXPECT_EQ(policy.text,
              text_of(fmt::format("{}/policies/{}.cfg", OFFSTAGE_CONFIGS, policy.name)));
  }
}

}  // namespace
}  // namespace offstage::cli
