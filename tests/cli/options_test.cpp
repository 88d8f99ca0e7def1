#include "cli/options.hpp"

#include <gmock/gmock.h>

#include <fmt/format.h>

#include <algorithm>

#include "config/effective_config.hpp"
#include "config/key_table.hpp"
#include "options_fixture.hpp"

namespace offstage::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

using Options = OptionsFixture;

std::vector<std::string> directories(config::RunConfig const& config) {
  std::vector<std::string> all;
  for (tiers::PathSettings const& path : config.paths) {
    all.push_back(path.directory);
  }
  return all;
}

TEST_F(Options, DefaultsFillWhatIsNotGiven) {
  auto const config = parse();
  EXPECT_EQ(config.train.sequence, 1024);
  EXPECT_EQ(config.train.micro_batch, 1);
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.optimizer.beta2, 0.95);
  EXPECT_EQ(config.optimizer.schedule, config::RateSchedule::cosine);
  EXPECT_EQ(config.numerics.dtype, DType::bf16);
  EXPECT_TRUE(config.numerics.accumulate_fp32);
  EXPECT_EQ(config.subgroup_size, 100'000'000);
  EXPECT_TRUE(config.subgroup_is_default);
  EXPECT_EQ(config.host_memory, 0);
  EXPECT_TRUE(config.paths.empty());
  EXPECT_EQ(config.storage.exclusive, config::Switch::automatic);
  EXPECT_EQ(config.storage.split.rule, plan::SplitRule::automatic);
  EXPECT_EQ(config.storage.verify, tiers::Verify::always);
  EXPECT_EQ(config.storage.most_cache, -1);
  EXPECT_EQ(config.storage.evict, plan::Evict::farthest);
  EXPECT_EQ(config.storage.order, plan::UpdateOrder::alternate);
  EXPECT_FALSE(config.storage.flush_fp32);
  EXPECT_FALSE(config.trace);
  EXPECT_EQ(config.checkpoint.keep, 2);
  EXPECT_EQ(config.checkpoint.every.steps, 0);
  EXPECT_EQ(config.checkpoint.every.time.count(), 0.0);
  EXPECT_TRUE(config.checkpoint.every.automatic);
  EXPECT_EQ(config.checkpoint.mtbf.count(), 86400.0);
  EXPECT_EQ(config.checkpoint.keep_every, 0);
  EXPECT_EQ(config.train.time_margin.count(), 60.0);
  EXPECT_EQ(config.checkpoint.resume, "auto");
}

TEST_F(Options, DerivedDefaultsFollowTheKeysTheyDeriveFrom) {
  auto const config = parse({"--train.sequence=128", "--train.micro-batch=3"});
  EXPECT_EQ(config.model.kv_heads, 4);
  EXPECT_EQ(config.model.ffn_hidden, 192);  // 8/3 * 64 = 170.7
  EXPECT_EQ(config.model.max_sequence, 128);
  EXPECT_EQ(config.train.global_batch, 3);
  EXPECT_EQ(config.checkpoint.dir, "run/checkpoints");
  EXPECT_EQ(setting(config, "model.ffn-hidden").value, "192");
  EXPECT_EQ(setting(config, "model.ffn-hidden").origin, "default");
}

TEST_F(Options, UnitsAndWordsAreRead) {
  auto const config =
      parse({"--tiers.host-memory=1.5GiB", "--update.subgroup-size=2M", "--train.max-time=1h",
             "--checkpoint.every=30min", "--numerics.dtype=fp32", "--numerics.accumulate=16bit",
             "--model.tied-head=true", "--train.activations=0.25", "--optimizer.schedule=wsd",
             "--train.seed=18446744073709551615"});
  EXPECT_EQ(config.host_memory, 3 * GiB / 2);
  EXPECT_EQ(config.subgroup_size, 2'000'000);
  EXPECT_FALSE(config.subgroup_is_default);
  EXPECT_EQ(config.train.max_time.count(), 3600.0);
  EXPECT_EQ(config.checkpoint.every.time.count(), 1800.0);
  EXPECT_EQ(config.checkpoint.every.steps, 0);
  EXPECT_EQ(config.numerics.dtype, DType::fp32);
  EXPECT_FALSE(config.numerics.accumulate_fp32);
  EXPECT_TRUE(config.model.tied_head);
  EXPECT_EQ(config.train.activations.rule, activations::Policy::Rule::swap);
  EXPECT_EQ(config.train.activations.share, 0.25);
  EXPECT_EQ(config.optimizer.schedule, config::RateSchedule::wsd);
  EXPECT_EQ(config.train.seed, 18446744073709551615U);
}

TEST_F(Options, ABareNumberOfCheckpointEveryMeansSteps) {
  EXPECT_EQ(parse({"--checkpoint.every=50"}).checkpoint.every.steps, 50);
  EXPECT_FALSE(parse({"--checkpoint.every=50"}).checkpoint.every.automatic);
  auto const at_the_end = parse({"--checkpoint.every=0"}).checkpoint;
  EXPECT_EQ(at_the_end.every.steps, 0);
  EXPECT_FALSE(at_the_end.every.automatic);
  EXPECT_THAT(error({"--checkpoint.every=1.5"}),
              AllOf(HasSubstr("checkpoint.every=1.5"), HasSubstr("50, 30min")));
  EXPECT_THAT(error({"--checkpoint.every=often"}), HasSubstr("checkpoint.every=often"));
}

TEST_F(Options, NoIntervalOfCheckpointsIsNegative) {
  for (char const* const key : {"checkpoint.every", "checkpoint.local-every"}) {
    for (char const* const bad : {"-5", "-5k", "-1.5M", "-5min", "-0k"}) {
      EXPECT_THAT(
          error({"--checkpoint.local=/local", fmt::format("--{}={}", key, bad)}),
          HasSubstr(fmt::format("{}={}: '{}' is neither steps nor a duration", key, bad, bad)));
    }
  }
}

TEST_F(Options, CheckpointRateIsBytesPerSecondOrAShare) {
  EXPECT_FALSE(parse({}).checkpoint.is_paced());
  EXPECT_FALSE(parse({"--checkpoint.rate=0"}).checkpoint.is_paced());
  auto const given = parse({"--checkpoint.rate=1.5GB/s"}).checkpoint;
  EXPECT_EQ(given.rate, 1.5e9);
  EXPECT_EQ(given.rate_part, 0.0);
  auto const share = parse({"--checkpoint.rate=12.5%"}).checkpoint;
  EXPECT_EQ(share.rate, 0.0);
  EXPECT_EQ(share.rate_part, 0.125);
  for (char const* const bad : {"0%", "-3%", "100.1%"}) {
    EXPECT_THAT(error({std::string{"--checkpoint.rate="} + bad}),
                AllOf(HasSubstr(std::string{"checkpoint.rate="} + bad), HasSubstr("is no share"),
                      HasSubstr("20%, or a rate, as in 500MB/s")));
  }
  EXPECT_THAT(error({"--checkpoint.rate=some%"}), HasSubstr("'some' is not a number"));
  EXPECT_THAT(error({"--checkpoint.rate=fast"}), HasSubstr("checkpoint.rate=fast"));
}

TEST_F(Options, ValuesMayStandBehindABlank) {
  EXPECT_EQ(parse({"--train.seed", "7"}).train.seed, 7U);
  EXPECT_THAT(error({"--optimizer.lr", "-1"}), HasSubstr("optimizer.lr=-1 must be above 0"));
}

TEST_F(Options, AnEmptyValueClearsAPathThatMayBeEmpty) {
  auto const config = file("a.cfg", "[tiers]\npath = /scratch\n");
  EXPECT_THAT(directories(parse({"--config", config})), ElementsAre("/scratch"));
  EXPECT_THAT(directories(parse({"--config", config, "--tiers.path="})), IsEmpty());
  EXPECT_EQ(setting(parse({"--config", config, "--tiers.path="}), "tiers.path").value, "");
}

TEST_F(Options, TiersPathMayBeRepeated) {
  auto const config = parse({"--tiers.path=/a,read=6.9GB/s,write=5GB/s", "--tiers.path", "/b",
                             "--tiers.path=/c,duplex=full,processes=2"});
  EXPECT_THAT(directories(config), ElementsAre("/a", "/b", "/c"));
  EXPECT_EQ(config.paths[0].read_rate, 6.9e9);
  EXPECT_EQ(config.paths[2].duplex, tiers::Duplex::full);
  EXPECT_EQ(config.paths[2].processes, 2);
  auto const path = file(
      "a.cfg", "[tiers]\npath = /a # fast\nverify = off\n[train]\nseed = 1\n[tiers]\npath=/b\n");
  EXPECT_THAT(directories(parse({"--config", path})), ElementsAre("/a", "/b"));
}

TEST_F(Options, AListOfPathsReplacesThoseOfOtherSources) {
  auto const a = file("a.cfg", "[tiers]\npath = /a1\npath = /a2\n");
  auto const b = file("b.cfg", "[tiers]\npath = /b1\npath = /b2\n");
  auto const c = file("c.cfg", "[tiers]\npath =\n");
  EXPECT_THAT(directories(parse({"--config", a, "--config", b})), ElementsAre("/b1", "/b2"));
  EXPECT_THAT(directories(parse({"--config", b, "--config", a})), ElementsAre("/a1", "/a2"));
  EXPECT_THAT(directories(parse({"--config", a, "--tiers.path=/c"})), ElementsAre("/c"));
  EXPECT_THAT(directories(parse({"--config", a, "--config", c})), IsEmpty());
  EXPECT_THAT(directories(parse({"--config", c, "--config", a})), ElementsAre("/a1", "/a2"));
}

TEST_F(Options, EveryPathIsASettingOfItsOwnInOrder) {
  auto const path = file("a.cfg", "[tiers]\npath = /z,persistent\npath = /a\n");
  std::vector<std::string> lines;
  for (config::Setting const& each : parse({"--config", path}).settings) {
    if (each.key == "tiers.path") {
      lines.push_back(each.value + " " + each.origin);
    }
  }
  EXPECT_THAT(lines, ElementsAre("/z,persistent " + path + ":2", "/a " + path + ":3"));
}

TEST_F(Options, AWrongPathNamesTheAttributeAndWhereItStands) {
  EXPECT_THAT(error({"--tiers.path=/a", "--tiers.path=/b,raed=1GB/s"}),
              AllOf(StartsWith("tiers.path=/b,raed=1GB/s: "), HasSubstr("read")));
  auto const path = file("a.cfg", "[tiers]\npath = /a\npath = /b,read=fast\n");
  EXPECT_THAT(error({"--config", path}), AllOf(StartsWith("tiers.path=/b,read=fast: "),
                                               HasSubstr("6.9GB/s"), HasSubstr(path + ":3")));
}

TEST_F(Options, HelpNamesAllAttributesOfAPath) {
  // A known attribute is refused for its empty value, an unknown one for its name.
  for (char const* const name :
       {"read", "write", "duplex", "queue-depth", "request-size", "processes", "threads",
        "emulate-read", "emulate-write", "emulate-latency", "emulate-duplex", "emulate-stream",
        "emulate-sharing", "endurance"}) {
    EXPECT_THAT(train_help(), HasSubstr(std::string{name} + "=")) << name;
    EXPECT_THAT(error({std::string{"--tiers.path=/a,"} + name + "="}),
                Not(HasSubstr("unknown attribute")));
  }
  EXPECT_THAT(train_help(), HasSubstr(" persistent,"));
}

TEST_F(Options, OneDirectoryTwiceIsAnError) {
  EXPECT_THAT(error({"--tiers.path=/a/b", "--tiers.path=/a/./b/,read=1GB/s,write=1GB/s"}),
              StartsWith("tiers.path=/a/./b/ is given twice; keep one"));
  auto const path = file("a.cfg", "[tiers]\npath = /a\npath = /a\n");
  EXPECT_THAT(error({"--config", path}),
              AllOf(StartsWith("tiers.path=/a is given twice"),
                    HasSubstr("tiers.path in " + path + ":2, tiers.path in " + path + ":3")));
}

TEST_F(Options, PoliciesOfTheVirtualTierAreRead) {
  auto const config =
      parse({"--tiers.path=/a", "--tiers.path=/b", "--tiers.exclusive=false", "--tiers.split=2:1",
             "--tiers.verify=sample", "--tiers.cache=2GiB", "--tiers.evict=oldest",
             "--update.order=ascending", "--update.gradients=flush-fp32", "--run.trace=on"});
  EXPECT_EQ(config.storage.exclusive, config::Switch::off);
  EXPECT_THAT(config.storage.split.weights, ElementsAre(2.0, 1.0));
  EXPECT_EQ(config.storage.verify, tiers::Verify::sample);
  EXPECT_EQ(config.storage.most_cache, 2 * GiB);
  EXPECT_EQ(config.storage.evict, plan::Evict::oldest);
  EXPECT_EQ(config.storage.order, plan::UpdateOrder::ascending);
  EXPECT_TRUE(config.storage.flush_fp32);
  EXPECT_TRUE(config.trace);
  EXPECT_EQ(parse({"--tiers.split=paper"}).storage.split.rule, plan::SplitRule::paper);
  EXPECT_EQ(parse({"--tiers.verify=off"}).storage.verify, tiers::Verify::off);
  EXPECT_EQ(parse({"--tiers.cache=0"}).storage.most_cache, 0);
  for (char const* key : {"tiers.exclusive", "tiers.split", "tiers.verify", "tiers.cache",
                          "tiers.evict", "update.order", "update.gradients", "run.trace"}) {
    EXPECT_THAT(error({std::string{"--"} + key + "=often"}),
                StartsWith(key + std::string{"=often: "}));
    EXPECT_THAT(error({std::string{"--"} + key + "="}), HasSubstr("empty"));
  }
}

TEST_F(Options, PoliciesMustFitThePaths) {
  EXPECT_EQ(error({"--tiers.path=/a", "--tiers.split=2:1"}),
            "tiers.split=2:1 has 2 weights, but there is 1 tiers.path; give one for each, or auto");
  EXPECT_EQ(error({"--tiers.split=2:1"}), "no error") << "as other tiers.* without storage";
  EXPECT_FALSE(parse({"--update.gradients=flush-fp32"}).flushes_fp32())
      << "nowhere to flush them to";
  EXPECT_TRUE(parse({"--update.gradients=flush-fp32", "--tiers.path=/a"}).flushes_fp32());
}

TEST_F(Options, TheCommandLineWinsOverLaterFilesAndTheseOverEarlierOnes) {
  auto const a = file("a.cfg", "[train]\nsequence = 16\nseed = 1\nlog-every = 1\n");
  auto const b = file("b.cfg", "[train]\nseed = 2\nlog-every = 2\n");
  auto const config = parse({"--config", a, "--train.log-every=3", "--config=" + b});
  EXPECT_EQ(config.train.sequence, 16);
  EXPECT_EQ(config.train.seed, 2U);
  EXPECT_EQ(config.train.log_every, 3);
  EXPECT_EQ(setting(config, "train.sequence").origin, a + ":2");
  EXPECT_EQ(setting(config, "train.seed").origin, b + ":2");
  EXPECT_EQ(setting(config, "train.log-every").origin, "--train.log-every=3");
}

TEST_F(Options, TheLastOfTwoOnTheCommandLineWins) {
  EXPECT_EQ(parse({"--train.seed=1", "--train.seed=2"}).train.seed, 2U);
}

TEST_F(Options, SettingsAreSortedAndHoldEveryKey) {
  auto const config = parse();
  EXPECT_EQ(config.settings.size(), config::key_table().size());
  EXPECT_TRUE(std::ranges::is_sorted(config.settings, {}, &config::Setting::key));
}

TEST_F(Options, UnknownKeysNamePlaceAndNearestKey) {
  EXPECT_EQ(error({"--train.stesp=5"}),
            "unknown key train.stesp (command line); the nearest key is train.steps");
  EXPECT_THAT(error({"--steps", "5"}), EndsWith("the nearest key is train.steps"));
  EXPECT_THAT(error({"--confg=x"}), EndsWith("the nearest key is config"));
  auto const path = file("a.cfg", "# a comment\n\n[train]\nmicro_batch = 5\n");
  EXPECT_EQ(error({"--config", path}),
            "unknown key train.micro_batch (" + path + ":4); the nearest key is train.micro-batch");
  EXPECT_THAT(error({"--config", file("b.cfg", "sequence = 5\n")}),
              EndsWith("b.cfg:1); the nearest key is train.sequence"));
}

TEST_F(Options, WordsOfOtherToolsNameTheKeyThatDoesTheSame) {
  EXPECT_EQ(error({"--optimizer.learning-rate=1"}),
            "unknown key optimizer.learning-rate (command line); use optimizer.lr: " +
                std::string{config::find_key("optimizer.lr")->help});
  auto const path = file("a.cfg", "[train]\nmicro_batch_size = 5\n");
  EXPECT_THAT(error({"--config", path}), StartsWith("unknown key train.micro_batch_size (" + path +
                                                    ":2); use train.micro-batch: "));
}

TEST_F(Options, EitherWordsOfTruthAreTakenAndKeptAsTheKeyHasThem) {
  for (char const* word : {"on", "true", "yes"}) {
    auto const config =
        parse({"--run.tensorboard=" + std::string{word}, "--model.qkv-bias=" + std::string{word},
               "--tiers.exclusive=" + std::string{word}});
    EXPECT_TRUE(config.tensorboard);
    EXPECT_TRUE(config.model.qkv_bias);
    EXPECT_EQ(config.storage.exclusive, config::Switch::on);
    EXPECT_EQ(setting(config, "run.tensorboard").value, "on");
    EXPECT_EQ(setting(config, "model.qkv-bias").value, "true");
  }
  EXPECT_EQ(setting(parse({"--run.trace=no"}), "run.trace").value, "off");
  EXPECT_EQ(setting(parse({"--run.trace=no"}), "run.trace").origin, "--run.trace=no (default)");
  EXPECT_EQ(setting(parse({"--run.dir=yes"}), "run.dir").value, "yes");
  EXPECT_EQ(error({"--run.tensorboard=maybe"}),
            "run.tensorboard=maybe: 'maybe' is none of off, on");
  EXPECT_THAT(error({"--checkpoint.partner=true"}), HasSubstr("'true' is none of off, copy"));
}

TEST_F(Options, AWordWithoutSectionMayBeNearAKeysName) {
  EXPECT_THAT(error({"--weight_decay=0"}), EndsWith("the nearest key is optimizer.weight-decay"));
  EXPECT_THAT(error({"--wieght-decay=0"}), EndsWith("the nearest key is optimizer.weight-decay"));
  EXPECT_THAT(error({"--train.weight_decay=0"}),
              EndsWith("the nearest key is optimizer.weight-decay"));
  EXPECT_THAT(error({"--dir=a"}), EndsWith("the nearest key is run.dir or checkpoint.dir"));
}

TEST_F(Options, AWordMayBeTheBeginOfAKeysName) {
  EXPECT_THAT(error({"--train.seq=1"}), EndsWith("the nearest key is train.sequence"));
  EXPECT_THAT(error({"--model.ffn=1"}), EndsWith("the nearest key is model.ffn-hidden"));
}

TEST_F(Options, WordsFarFromAllKeysNameNone) {
  for (char const* word : {"--weights", "--optimizer.foo", "--s", "--trust-remote-code"}) {
    EXPECT_THAT(error({std::string{word} + "=1"}),
                EndsWith("; offstage train --help lists all keys"))
        << word;
  }
}

TEST_F(Options, WordsOfOtherToolsWithoutAKeySayWhatThereIs) {
  EXPECT_EQ(error({"--dropout=0.1"}), "unknown key dropout (command line); there is no dropout");
  EXPECT_THAT(error({"--zero_stage=3"}), HasSubstr("parameters.sharding"));
  EXPECT_THAT(error({"--config", file("a.cfg", "[data]\ntokenizer = x\n")}),
              HasSubstr("(" + directory_.path().string() + "/a.cfg:2); offstage data pack"));
}

TEST_F(Options, AKeyWithoutEffectIsAnError) {
  using Arguments = std::vector<std::string>;
  EXPECT_EQ(error({"--optimizer.decay-steps=5"}),
            "optimizer.decay-steps=5 has no effect with optimizer.schedule=cosine; leave it out");
  EXPECT_EQ(error({"--data.separator=10"}),
            "data.separator=10 has no effect with data.cross-documents=true and "
            "data.attention=window; leave it out");
  EXPECT_EQ(error({"--data.attention=document", "--data.cross-documents=false"}),
            "data.attention=document has no effect with data.cross-documents=false; leave it out");
  for (auto const& [keys, part] : {
           std::pair{Arguments{"--optimizer.kind=sgd", "--optimizer.beta1=0.9"},
                     "beta1=0.9 has no effect with optimizer.kind=sgd"},
           {{"--optimizer.decay-fraction=0.1", "--optimizer.schedule=linear"},
            "decay-fraction=0.1 has no effect with optimizer.schedule=linear"},
           {{"--optimizer.schedule=wsd", "--optimizer.decay-fraction=0.1",
             "--optimizer.decay-steps=5"},
            "decay-fraction=0.1 has no effect with optimizer.decay-steps=5"},
           {{"--optimizer.min-lr=1e-5", "--optimizer.schedule=constant"},
            "min-lr=1e-5 has no effect with optimizer.schedule=constant"},
           {{"--numerics.loss-scale=1024"},
            "loss-scale=1024 has no effect with numerics.dtype=bf16"},
           {{"--numerics.loss-scale-start=8", "--numerics.dtype=fp32"},
            "loss-scale-start=8 has no effect with numerics.dtype=fp32"},
           {{"--numerics.loss-scale-window=8", "--numerics.dtype=fp16",
             "--numerics.loss-scale=1024"},
            "loss-scale-window=8 has no effect with numerics.loss-scale=1024"},
           {{"--train.valid-batches=5"}, "train.valid-batches=5 has no effect without data.valid"},
           {{"--train.valid-every=5"}, "train.valid-every=5 has no effect without data.valid"},
           {{"--checkpoint.local-every=5"}, "local-every=5 has no effect without checkpoint.local"},
       }) {
    EXPECT_THAT(error(keys), HasSubstr(part));
  }
  auto const path = file("a.cfg", "[train]\nvalid-batches = 5\n");
  EXPECT_THAT(error({"--config", path}), EndsWith("(train.valid-batches in " + path + ":2)"));
}

TEST_F(Options, AKeyThatIsUsedOrHasItsDefaultIsNoError) {
  EXPECT_NO_THROW(
      parse({"--optimizer.schedule=wsd", "--optimizer.decay-steps=5", "--optimizer.min-lr=1e-5",
             "--numerics.dtype=fp16", "--numerics.loss-scale-start=8", "--data.valid=b.txt",
             "--train.valid-batches=5", "--checkpoint.local=/l", "--checkpoint.local-every=5"}));
  // effective.cfg of one run begins another one with other keys beside it.
  EXPECT_NO_THROW(parse(
      {"--optimizer.schedule=constant", "--optimizer.min-lr=0", "--numerics.loss-scale=dynamic"}));
  auto const effective = file("effective.cfg", config::effective_config(parse()));
  EXPECT_NO_THROW(parse({"--config", effective, "--optimizer.schedule=constant"}));
}

TEST_F(Options, APlanTakesKeysOfValidationWithoutItsData) {
  EXPECT_EQ(parse_plan_options(complete({"--train.valid-batches=5"})).config.train.valid_batches,
            5);
}

TEST_F(Options, APrefixOfAKeyIsNoKey) {
  EXPECT_THAT(error({"--train.seq=5"}), StartsWith("unknown key train.seq "));
  EXPECT_THAT(error({"--config", file("a.cfg", "[train]\nseq = 5\n")}),
              StartsWith("unknown key train.seq "));
}

TEST_F(Options, UnknownSectionsNameTheNearest) {
  auto const path = file("a.cfg", "[trian]\nsteps = 5\n");
  EXPECT_EQ(error({"--config", path}),
            "unknown section [trian] (" + path + ":1); the nearest is [train]");
  EXPECT_THAT(error({"--config", file("b.cfg", "[]\n")}), StartsWith("unknown section []"));
  for (char const* const name : {"train", "training]", "Train]"}) {
    EXPECT_THAT(error({"--config", file("c.cfg", fmt::format("[{}\n", name))}),
                EndsWith("the nearest is [train]"));
  }
}

TEST_F(Options, SectionsOfOtherToolsAreAnswered) {
  auto const advice = [this](std::string const& name) {
    auto const text = error({"--config", file("a.cfg", "[" + name + "]\n")});
    return text.substr(text.find("; ") + 2);
  };
  EXPECT_THAT(advice("fp16"), StartsWith("use numerics.dtype: "));
  EXPECT_THAT(advice("scheduler"), StartsWith("use optimizer.schedule: "));
  EXPECT_THAT(advice("activation_checkpointing"), StartsWith("use train.activations: "));
  EXPECT_THAT(advice("zero_optimization"), StartsWith("ranks share the optimizer state"));
  EXPECT_THAT(advice("parallelism"), StartsWith("ranks share data"));
  EXPECT_THAT(advice("reward"), StartsWith("the sections are run, model, data, train, "));
}

TEST_F(Options, AKeyTwiceInOneFileIsAnError) {
  auto const path = file("a.cfg", "[train]\nseed = 1\n[data]\nformat = text\n[train]\nseed = 2\n");
  EXPECT_EQ(error({"--config", path}),
            "train.seed=2 (" + path + ":6) is in " + path + ":2 already; keep one");
}

TEST_F(Options, CommentsEndAValue) {
  auto const path = file("a.cfg", "[train]\nseed = 5 # five\r\n[tiers]\npath = /nvme # fast\n");
  auto const config = parse({"--config", path});
  EXPECT_EQ(config.train.seed, 5U);
  EXPECT_THAT(directories(config), ElementsAre("/nvme"));
}

TEST_F(Options, AHashInAPathIsRefused) {
  auto const path = file("a.cfg", "[data]\ntrain = corpus#1.txt\n");
  EXPECT_THAT(error({"--config", path}),
              AllOf(StartsWith("data.train: a path cannot contain '#'"), HasSubstr(path + ":2")));
  EXPECT_THAT(error({"--config", file("b.cfg", "[run]\ndir = my #1 run\n")}),
              StartsWith("run.dir: a path cannot contain '#'"));
  EXPECT_THAT(error({"--tiers.path=/a#b"}), HasSubstr("/a#b"));
  EXPECT_THAT(error({"--tiers.path=/a", "--tiers.path=/b,read=1GB/s#"}),
              StartsWith("tiers.path: a path cannot contain '#'"));
  EXPECT_THAT(error({"--checkpoint.resume=/a#b"}), StartsWith("checkpoint.resume"));
}

TEST_F(Options, LinesThatAreNoKeyAreErrors) {
  auto const path = file("a.cfg", "[train]\nsteps 5\n");
  EXPECT_EQ(error({"--config", path}), path + ":2: 'steps 5' is neither [section] nor key = value");
  auto const json = file("ds.json", "\n{\"train_batch_size\": 8, \"path\": \"a=b\"}\n");
  EXPECT_THAT(error({"--config", json}),
              StartsWith(json + ":2: a configuration is no JSON, but lines of key = value; "));
  auto const binary = file("b.cfg", std::string(3000, '\1'));
  EXPECT_LT(error({"--config", binary}).size(), 300U) << "a line of no text is not shown whole";
  EXPECT_THAT(error({"train.steps=5"}), HasSubstr("unexpected argument 'train.steps=5'"));
  EXPECT_THAT(error({"my.cfg"}),
              HasSubstr("'my.cfg'; options are --section.key=value and --config FILE"));
  EXPECT_THAT(error({"-x"}), HasSubstr("unexpected argument '-x'"));
  EXPECT_THAT(error({"--train.steps"}), HasSubstr("--train.steps"));
}

TEST_F(Options, AByteOrderMarkBelongsToNoSection) {
  auto const path = file("a.cfg", "\xef\xbb\xbf[train]\nlog-every = 5\n");
  EXPECT_EQ(parse({"--config", path}).train.log_every, 5);
}

TEST_F(Options, ConfigFilesMustBeThere) {
  EXPECT_THAT(error({"--config=/nowhere/a.cfg"}), StartsWith("--config=/nowhere/a.cfg: cannot"));
  EXPECT_THAT(error({"--config=/nowhere/a.cfg"}), HasSubstr("No such file"));
  EXPECT_EQ(error({"--config", directory_.path().string()}),
            fmt::format("--config={}: it is a directory; name a file", directory_.path().string()));
}

TEST_F(Options, WrongValuesNameKeyValueRemedyAndPlace) {
  auto const path = file("a.cfg", "[optimizer]\nschedule = cosin\n");
  EXPECT_EQ(error({"--config", path}),
            "optimizer.schedule=cosin: 'cosin' is none of constant, linear, cosine, wsd, cooldown, "
            "inverse-sqrt (" +
                path + ":2)");
  EXPECT_EQ(error({"--train.steps=ten"}),
            "train.steps=ten: 'ten' is not a whole number; write for example 20000 or 20k");
  for (auto const* const text : {"0epochs", "-1epochs", "epochs", "3epochen", "1e5epochs"}) {
    EXPECT_THAT(error({std::string{"--train.steps="} + text}),
                AllOf(HasSubstr(std::string{"'"} + text + "' is no length"),
                      HasSubstr("3epochs or 0.5epochs")));
  }
  EXPECT_EQ(error({"--model.family=gpt"}), "model.family=gpt: 'gpt' is none of llama, gpt2");
  EXPECT_THAT(error({"--train.steps=5x"}), StartsWith("train.steps=5x: "));
  EXPECT_THAT(error({"--train.steps=99999999999999999999"}), HasSubstr("too large"));
  EXPECT_THAT(error({"--run.threads=2147483648"}), HasSubstr("too large"));
  EXPECT_THAT(error({"--optimizer.lr=nan"}), HasSubstr("not a number"));
  EXPECT_THAT(error({"--train.seed=-1"}), HasSubstr("from 0 to"));
  EXPECT_THAT(error({"--tiers.host-memory=much"}),
              AllOf(StartsWith("tiers.host-memory=much: "), HasSubstr("512MiB")));
  EXPECT_THAT(error({"--tiers.host-memory=0"}), HasSubstr("auto or a size"));
}

TEST_F(Options, RequiredKeysAreNamedTogether) {
  EXPECT_EQ(error_of({"--run.dir=a", "--model.family=llama", "--model.layers=1",
                      "--model.hidden=64", "--model.heads=4", "--model.vocab=256"}),
            "data.train, train.steps are missing; give them in a config file or as "
            "--data.train=PATH[:WEIGHT],...");
  EXPECT_THAT(error({"--run.dir="}), StartsWith("run.dir=: the value is empty; give PATH"));
  EXPECT_THAT(error({"--checkpoint.dir="}), HasSubstr("empty"));
  EXPECT_THAT(error({"--train.sequence="}), HasSubstr("empty"));
}

TEST_F(Options, WeightsBelongToTrainingAlone) {
  auto const config = parse({"--data.train=a.bin:3,b.bin:1", "--data.valid=c.bin:1,d:e.bin:1"});
  ASSERT_EQ(config.data.train.size(), 2U);
  EXPECT_EQ(config.data.train[0].weight, 3.0);
  ASSERT_EQ(config.data.valid.size(), 2U);
  EXPECT_EQ(config.data.valid[1].path, "d:e.bin");
  EXPECT_THAT(error({"--data.valid=c.bin:0.7,d.bin:1"}),
              AllOf(StartsWith("data.valid=c.bin:0.7,d.bin:1: the weight 0.7 of c.bin"),
                    HasSubstr("leave weights out")));
  EXPECT_THAT(error({"--data.train=a.bin:3,b.bin"}),
              StartsWith("data.train=a.bin:3,b.bin: a.bin has a weight, and b.bin has none"));
}

TEST_F(Options, CombinationsThatDoNotFitSayWhereTheyStand) {
  EXPECT_EQ(error({"--train.global-batch=5", "--train.micro-batch=2"}),
            "train.global-batch=5 is not a multiple of train.micro-batch=2; use 4 or 6");
  auto const path = file("a.cfg", "[train]\nglobal-batch = 5\nmicro-batch = 2\n");
  EXPECT_EQ(error({"--config", path}),
            "train.global-batch=5 is not a multiple of train.micro-batch=2; use 4 or 6 "
            "(train.global-batch in " +
                path + ":2, train.micro-batch in " + path + ":3)");
  EXPECT_THAT(error({"--model.heads=5"}), HasSubstr("model.heads=5"));
  EXPECT_THAT(error({"--train.sequence=0"}), StartsWith("train.sequence=0 must be 1 or more"));
}

TEST_F(Options, NumbersMayHaveAUnit) {
  EXPECT_EQ(parse({"--train.steps=20k"}).train.steps, 20'000);
  EXPECT_EQ(parse({"--train.steps=1.5M", "--optimizer.warmup-steps=2K"}).train.steps, 1'500'000);
  EXPECT_EQ(parse({"--checkpoint.every=2k"}).checkpoint.every.steps, 2'000);
  EXPECT_EQ(parse({"--checkpoint.every=2m"}).checkpoint.every.time.count(), 120.0);
  EXPECT_EQ(parse({"--train.max-time=1-00:00:00"}).train.max_time.count(), 86400.0);
  for (char const* const steps : {"1.5", "10kk", "k", "10 k", "1.0005k", "1e3", "10x"}) {
    EXPECT_EQ(
        error({std::string{"--train.steps="} + steps}),
        fmt::format("train.steps={}: '{}' is not a whole number; write for example 20000 or 20k",
                    steps, steps));
  }
  EXPECT_THAT(error({"--train.steps=2000T"}), HasSubstr("too large"));
  EXPECT_THAT(error({"--checkpoint.every=1.5"}), HasSubstr("neither steps nor a duration"));
}

TEST_F(Options, FilesAreReadAsPeopleWriteThem) {
  auto const config = parse_train_options(
      {"--config",
       file("a.cfg",
            "; a comment\n[run] ; another\ndir = \"my run\" ; third\n"
            "[data]\ntrain = 'a;b.txt'\n[model]\nfamily=llama ; fourth\n"
            "layers = '2'\nhidden=64\nheads=4\nvocab=256\n[train]\nsteps=10\t; last\n")});
  EXPECT_EQ(config.run_dir, "my run");
  EXPECT_EQ(config.data.train.front().path, "a;b.txt");
  EXPECT_EQ(config.model.layers, 2);
  EXPECT_EQ(config.train.steps, 10);
  auto const place = file("b.cfg", "\n[run]\ndir = \"my run\n");
  EXPECT_EQ(error({"--config", place}),
            place +
                ":3: run.dir: \"my run begins with a quotation mark, but does not end with it; "
                "put both or none");
  EXPECT_THAT(error({"--config", file("c.cfg", "run.dir = 'a' b\n")}),
              HasSubstr("put both or none"));
}

TEST_F(Options, TheEffectiveConfigurationGivesTheSameAgain) {
  auto const given =
      parse({"--config", file("a.cfg", "[run]\ndir = \" x \"\n"), "--train.steps=20k",
             "--tiers.path=/a,read=1GB/s,write=1GB/s", "--tiers.path=/b,read=1GB/s,write=1GB/s",
             "--optimizer.kind=lion", "--data.train=a;b.txt:0.5,c.txt:1.5", "--data.valid=a\t;b",
             "--checkpoint.local=;c"});
  auto const again =
      parse_train_options({"--config", file("effective.cfg", config::effective_config(given))});
  ASSERT_EQ(again.settings.size(), given.settings.size());
  for (std::size_t i = 0; i < given.settings.size(); ++i) {
    EXPECT_EQ(again.settings[i].key, given.settings[i].key);
    EXPECT_EQ(again.settings[i].value, given.settings[i].value) << given.settings[i].key;
  }
  EXPECT_EQ(config::effective_config(again), config::effective_config(given));
  EXPECT_TRUE(again.subgroup_is_default);
  EXPECT_EQ(parse_train_options({"--config", file("effective.cfg", config::effective_config(given)),
                                 "--run.dir=other"})
                .checkpoint.dir,
            "other/checkpoints");
}

TEST_F(Options, APathHasNoCharacterThatNoConfigurationCouldHold) {
  for (char const* const path : {"a\nb", "a\r", "\x1b[2J", "a\x7f"}) {
    EXPECT_THAT(error({fmt::format("--run.dir={}", path)}),
                StartsWith("run.dir: a path cannot contain control characters"));
  }
  EXPECT_THAT(error({"--config", file("a.cfg", "data.valid = a\x01z\n")}),
              AllOf(StartsWith("data.valid: a path cannot contain control characters"),
                    HasSubstr("a.cfg:1")));
  EXPECT_EQ(parse({"--run.dir=a\tb"}).run_dir, "a\tb");
}

}  // namespace
}  // namespace offstage::cli
