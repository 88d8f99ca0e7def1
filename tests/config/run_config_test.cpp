#include "config/run_config.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <initializer_list>

#include "base/error.hpp"
#include "config/split_parameters.hpp"

namespace offstage::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RunConfig good() {
  RunConfig config;
  config.run_dir = "run";
  config.model = {.layers = 2,
                  .hidden = 64,
                  .heads = 4,
                  .kv_heads = 2,
                  .ffn_hidden = 128,
                  .vocab = 256,
                  .max_sequence = 32};
  config.train.steps = 10;
  config.train.sequence = 32;
  config.train.micro_batch = 2;
  config.train.global_batch = 4;
  config.train.max_bad_steps = 10;
  config.train.log_every = 1;
  config.optimizer = {.lr = 1e-3,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .eps = 1e-8,
                      .weight_decay = 0.1,
                      .clip = 1.0,
                      .warmup_steps = 2,
                      .decay_fraction = 0.2};
  config.subgroup_size = 1000;
  config.share.device_chunk = 4096;
  config.checkpoint.dir = "run/checkpoints";
  config.checkpoint.keep = 2;
  config.checkpoint.mtbf = Seconds{3600};
  return config;
}

std::string error_after(std::function<void(RunConfig&)> const& change) {
  RunConfig config = good();
  change(config);
  try {
    validate(config);
  } catch (UsageError const& error) {
    return error.what();
  }
  return "no error";
}

TEST(RunConfig, AGoodOnePasses) {
  EXPECT_NO_THROW(validate(good()));
}

TEST(RunConfig, AGlobalBatchIsAMultipleOfTheMicroBatch) {
  EXPECT_EQ(error_after([](RunConfig& c) { c.train.global_batch = 5; }),
            "train.global-batch=5 is not a multiple of train.micro-batch=2; use 4 or 6");
  EXPECT_EQ(error_after([](RunConfig& c) { c.train.global_batch = 1; }),
            "train.global-batch=1 is not a multiple of train.micro-batch=2; use 2");
}

TEST(RunConfig, TheSequenceFitsTheModel) {
  EXPECT_EQ(error_after([](RunConfig& c) { c.train.sequence = 33; }),
            "train.sequence=33 is longer than model.max-sequence=32; use 32 or less");
}

TEST(RunConfig, TheModelIsChecked) {
  EXPECT_THAT(error_after([](RunConfig& c) { c.model.heads = 5; }),
              AllOf(HasSubstr("model.heads=5"), HasSubstr("model.hidden=64")));
  EXPECT_THAT(error_after([](RunConfig& c) { c.model.kv_heads = 3; }),
              AllOf(HasSubstr("model.kv-heads=3"), HasSubstr("model.heads=4")));
}

TEST(RunConfig, WarmUpLeavesAStep) {
  EXPECT_EQ(error_after([](RunConfig& c) { c.optimizer.warmup_steps = 10; }),
            "optimizer.warmup-steps=10 leaves nothing of train.steps=10; use 9 or less");
}

TEST(RunConfig, EpochsLeaveTheStepsOpen) {
  auto const with = [](std::int64_t steps, std::vector<data::Source> const& sources) {
    return error_after([&](RunConfig& c) {
      c.train.steps = steps;
      c.train.epochs = 3.0;
      c.data.train = sources;
      c.optimizer.warmup_steps = 100;
    });
  };
  EXPECT_EQ(with(0, {{"a"}, {"b"}}), "no error");
  EXPECT_EQ(with(0, {{"a", 0.5}}), "no error");
  EXPECT_THAT(with(0, {{"a", 0.5}, {"b", 0.5}}), HasSubstr("train.steps=3epochs needs files"));
  EXPECT_EQ(with(60, {{"a"}}),
            "optimizer.warmup-steps=100 leaves nothing of train.steps=60; use 59 or less");
}

TEST(RunConfig, AnInverseSqrtNeedsAWarmUp) {
  auto const with = [](std::int64_t warmup_steps) {
    return error_after([&](RunConfig& c) {
      c.optimizer.schedule = RateSchedule::inverse_sqrt;
      c.optimizer.warmup_steps = warmup_steps;
    });
  };
  EXPECT_EQ(with(1), "no error");
  EXPECT_THAT(with(0), AllOf(HasSubstr("optimizer.schedule=inverse-sqrt"),
                             HasSubstr("optimizer.warmup-steps=0 leaves no rate; give 1 or more")));
}

TEST(RunConfig, TheLeastRateIsNotAboveTheRate) {
  EXPECT_EQ(error_after([](RunConfig& c) { c.optimizer.min_lr = 0.1; }),
            "optimizer.min-lr=0.1 is above optimizer.lr=0.001; use 0.001 or less");
}

TEST(RunConfig, AFallIsNoLongerThanTheRun) {
  auto const with = [](std::int64_t decay_steps) {
    return error_after([&](RunConfig& c) {
      c.optimizer.schedule = RateSchedule::wsd;
      c.optimizer.decay_steps = decay_steps;
    });
  };
  EXPECT_EQ(with(10), "no error");
  EXPECT_EQ(with(11), "optimizer.decay-steps=11 is more than train.steps=10; use 10 or less");
}

TEST(RunConfig, ASeparatorIsATokenOfTheVocabulary) {
  auto const with = [](std::int32_t separator) {
    return error_after([&](RunConfig& c) { c.data.separator = separator; });
  };
  EXPECT_EQ(with(255), "no error");
  EXPECT_EQ(with(256),
            "data.separator=256 is no token of model.vocab=256; name the token that ends a "
            "document, from 0 to 255");
  EXPECT_THAT(with(-1), HasSubstr("data.separator=-1 is no token"));
}

TEST(RunConfig, ParametersAreSplitWhereUpdatesCanReadTheWorkingCopy) {
  auto const settled = [](std::function<void(RunConfig&)> const& change) {
    RunConfig config = good();
    config.numerics.dtype = DType::bf16;
    config.paths.resize(1);
    config.paths[0].directory = "storage";
    config.overlap = Switch::off;
    change(config);
    settle_split_parameters(config);
    return config;
  };
  auto const splits = [&](std::function<void(RunConfig&)> const& change) {
    return settled(change).optimizer.split_parameter;
  };
  EXPECT_TRUE(splits([](RunConfig&) {}));
  EXPECT_FALSE(splits([](RunConfig& c) { c.storage.split_parameters = Switch::off; }));
  EXPECT_FALSE(splits([](RunConfig& c) { c.numerics.dtype = DType::fp32; }));
  EXPECT_FALSE(splits([](RunConfig& c) { c.paths.clear(); }));
  EXPECT_FALSE(splits([](RunConfig& c) { c.paths[0].persistent = true; }));
  EXPECT_FALSE(splits([](RunConfig& c) { c.overlap = Switch::automatic; }));
  EXPECT_FALSE(splits([](RunConfig& c) { c.parameter_home = parameters::Home::storage; }));
  EXPECT_FALSE(splits([](RunConfig& c) { c.device.kind = DeviceKind::cuda; }));
  EXPECT_FALSE(splits([](RunConfig& c) { c.device.emulation.device_to_host = 1e9; }));
  EXPECT_TRUE(splits([](RunConfig& c) {
    c.device.kind = DeviceKind::cuda;
    c.parameter_home = parameters::Home::host;
  }));
  RunConfig const asked = settled([](RunConfig& c) {
    c.storage.split_parameters = Switch::on;
    c.overlap = Switch::on;
    c.paths[0].persistent = true;
    c.paths[0].nearby = true;
  });
  EXPECT_EQ(asked.optimizer.layout().planes().front().type, PlaneType::low16);
  EXPECT_EQ(asked.optimizer.layout().bytes_per_element(), 10.0);
  EXPECT_EQ(asked.optimizer.checkpoint_layout(), adamw_layout());
  EXPECT_FALSE(asked.paths[0].persistent);
  EXPECT_FALSE(asked.paths[0].nearby);
  EXPECT_THAT(error_after([](RunConfig& c) {
                c.storage.split_parameters = Switch::on;
                c.numerics.dtype = DType::fp16;
              }),
              AllOf(HasSubstr("tiers.split-parameters=on"), HasSubstr("numerics.dtype=fp16")));
}

TEST(RunConfig, OneCheckpointIsNotEnough) {
  EXPECT_THAT(error_after([](RunConfig& c) { c.checkpoint.keep = 1; }),
              HasSubstr("checkpoint.keep=1 must be 2 or more"));
}

TEST(RunConfig, CheckpointsHaveADirectoryOfTheirOwn) {
  EXPECT_THAT(error_after([](RunConfig& c) { c.checkpoint.dir = "./run/"; }),
              AllOf(HasSubstr("checkpoint.dir=./run/"), HasSubstr("run/checkpoints")));
}

TEST(RunConfig, RangesNameTheKeyAndTheValue) {
  EXPECT_EQ(error_after([](RunConfig& c) { c.train.steps = 0; }),
            "train.steps=0 must be 1 or more");
  EXPECT_EQ(error_after([](RunConfig& c) { c.optimizer.lr = 0.0; }),
            "optimizer.lr=0 must be above 0");
  EXPECT_EQ(error_after([](RunConfig& c) { c.optimizer.beta1 = 1.0; }),
            "optimizer.beta1=1 must be at least 0 and below 1");
  struct Case {
    char const* key;
    std::function<void(RunConfig&)> change;
  };
  for (Case const& each : std::initializer_list<Case>{
           {"train.sequence=0", [](RunConfig& c) { c.train.sequence = 0; }},
           {"train.micro-batch=0", [](RunConfig& c) { c.train.micro_batch = 0; }},
           {"train.global-batch=0", [](RunConfig& c) { c.train.global_batch = 0; }},
           {"train.max-time=-1", [](RunConfig& c) { c.train.max_time = Seconds{-1}; }},
           {"train.time-margin=-1", [](RunConfig& c) { c.train.time_margin = Seconds{-1}; }},
           {"checkpoint.mtbf=0", [](RunConfig& c) { c.checkpoint.mtbf = {}; }},
           {"checkpoint.keep-every=-1", [](RunConfig& c) { c.checkpoint.keep_every = -1; }},
           {"train.max-bad-steps=0", [](RunConfig& c) { c.train.max_bad_steps = 0; }},
           {"train.valid-every=-1", [](RunConfig& c) { c.train.valid_every = -1; }},
           {"train.valid-batches=-1", [](RunConfig& c) { c.train.valid_batches = -1; }},
           {"train.log-every=0", [](RunConfig& c) { c.train.log_every = 0; }},
           {"optimizer.beta2=-0.1", [](RunConfig& c) { c.optimizer.beta2 = -0.1; }},
           {"optimizer.eps=0", [](RunConfig& c) { c.optimizer.eps = 0; }},
           {"optimizer.eps=1e-50 must be 1e-18 or more",
            [](RunConfig& c) { c.optimizer.eps = 1e-50; }},
           {"optimizer.weight-decay=-1", [](RunConfig& c) { c.optimizer.weight_decay = -1; }},
           {"optimizer.clip=-1", [](RunConfig& c) { c.optimizer.clip = -1; }},
           {"optimizer.min-lr=-1", [](RunConfig& c) { c.optimizer.min_lr = -1; }},
           {"optimizer.warmup-steps=-1", [](RunConfig& c) { c.optimizer.warmup_steps = -1; }},
           {"optimizer.decay-fraction=0", [](RunConfig& c) { c.optimizer.decay_fraction = 0; }},
           {"optimizer.decay-fraction=2", [](RunConfig& c) { c.optimizer.decay_fraction = 2; }},
           {"run.threads=-1", [](RunConfig& c) { c.threads = -1; }},
           {"run.watchdog=0.5", [](RunConfig& c) { c.watchdog = Seconds{0.5}; }},
           {"update.subgroup-size=0", [](RunConfig& c) { c.subgroup_size = 0; }},
           {"update.device-share=1.5", [](RunConfig& c) { c.share.device_share = 1.5; }},
           {"update.device-share=-0.5", [](RunConfig& c) { c.share.device_share = -0.5; }},
           {"update.device-share=nan", [](RunConfig& c) { c.share.device_share = std::nan(""); }},
           {"update.device-resident=2", [](RunConfig& c) { c.share.device_resident = 2; }},
           {"update.device-chunk=0", [](RunConfig& c) { c.share.device_chunk = 0; }},
       }) {
    EXPECT_THAT(error_after(each.change), ::testing::StartsWith(each.key));
  }
}

TEST(RunConfig, NotANumberIsOutOfEveryRange) {
  EXPECT_THAT(error_after([](RunConfig& c) { c.optimizer.clip = std::nan(""); }),
              HasSubstr("optimizer.clip="));
  EXPECT_THAT(error_after([](RunConfig& c) { c.optimizer.lr = std::nan(""); }),
              HasSubstr("optimizer.lr="));
}

TEST(RunConfig, StoragePathsAreDifferentDirectories) {
  auto const with = [](std::string const& a, std::string const& b) {
    return error_after([&](RunConfig& c) {
      c.paths = {{.directory = a, .engine = {}, .emulation = {}},
                 {.directory = b, .engine = {}, .emulation = {}}};
    });
  };
  EXPECT_THAT(with("/a", "/b"), "no error");
  EXPECT_THAT(with("/a", "/a/"), HasSubstr("tiers.path=/a/ is given twice"));
  EXPECT_THAT(with("a/../b", "b"), HasSubstr("tiers.path=b is given twice"));
  EXPECT_THAT(with("a", std::filesystem::current_path().string() + "/a"), HasSubstr("given twice"));
}

TEST(RunConfig, FixedWeightsAreAsManyAsStoragePaths) {
  auto const with = [](char const* split, std::vector<std::string> const& directories) {
    return error_after([&](RunConfig& c) {
      for (std::string const& directory : directories) {
        c.paths.push_back({.directory = directory, .engine = {}, .emulation = {}});
      }
      c.storage.split = plan::parse_split(split);
    });
  };
  EXPECT_EQ(
      with("2:1.5:1", {"/a", "/b"}),
      "tiers.split=2:1.5:1 has 3 weights, but there are 2 tiers.path; give one for each, or auto");
  EXPECT_EQ(with("2", {"/a"}), "no error");
  EXPECT_EQ(with("2:1", {}), "no error") << "without storage it has no effect";
}

TEST(RunConfig, StoredParametersNeedAStoragePath) {
  EXPECT_THAT(error_after([](RunConfig& c) { c.parameter_home = parameters::Home::storage; }),
              AllOf(HasSubstr("parameters.home=storage"), HasSubstr("there is no tiers.path"),
                    HasSubstr("parameters.home=host")));
}

TEST(RunConfig, WholeParametersNeedToLiveOnTheDevice) {
  auto const with = [](parameters::Home home, bool is_open) {
    return error_after([&](RunConfig& c) {
      c.parameter_home = home;
      c.plan.choose = c.home_is_open = is_open;
      c.sharding = parameters::Sharding::zero2;
    });
  };
  EXPECT_EQ(with(parameters::Home::device, false), "no error");
  EXPECT_EQ(with(parameters::Home::device, true), "no error");
  EXPECT_THAT(with(parameters::Home::host, false),
              AllOf(HasSubstr("parameters.sharding=zero2"), HasSubstr("parameters.home=host"),
                    HasSubstr("parameters.home=device, or parameters.sharding=zero3")));
  EXPECT_THAT(with(parameters::Home::node, false), HasSubstr("parameters.home=node"));
  // Before a block that is missing: no block would help.
  EXPECT_THAT(error_after([](RunConfig& c) {
                c.parameter_home = parameters::Home::host;
                c.sharding = parameters::Sharding::zero1;
              }),
              AllOf(HasSubstr("parameters.sharding=zero1"), HasSubstr("parameters.home=host")));
}

TEST(RunConfig, WholeGradientsNeedBlocksOfMicroBatches) {
  auto const with = [](std::int64_t block, std::int64_t global_batch) {
    return error_after([&](RunConfig& c) {
      c.train.micro_batch = 2;
      c.train.global_batch = global_batch;
      c.numerics.sum_block = block;
      c.sharding = parameters::Sharding::zero1;
    });
  };
  EXPECT_EQ(with(2, 12), "no error");
  EXPECT_EQ(with(5, 12), "no error");
  for (int const block : {1, 6, 7}) {
    EXPECT_THAT(with(block, 12),
                AllOf(HasSubstr("parameters.sharding=zero1"),
                      HasSubstr(fmt::format("numerics.sum-block={} must be from 2 to 5", block)),
                      HasSubstr("or use parameters.sharding=zero2")));
  }
  EXPECT_THAT(with(2, 4), HasSubstr("train.global-batch=4 has 2; use parameters.sharding=zero2"));
  EXPECT_THAT(with(0, 12), HasSubstr("numerics.sum-block=0 must be 1 or more"));
}

TEST(RunConfig, OnlyTheHostDeviceIsEmulated) {
  auto const with = [](DeviceKind kind) {
    return error_after([&](RunConfig& c) {
      c.device.kind = kind;
      c.device.emulation.host_to_device = 1e9;
    });
  };
  EXPECT_EQ(with(DeviceKind::host), "no error");
  EXPECT_EQ(with(DeviceKind::automatic), "no error");
  EXPECT_THAT(with(DeviceKind::cuda), AllOf(HasSubstr("device.emulate"), HasSubstr("cuda")));
}

}  // namespace
}  // namespace offstage::config
