#include "cli/options.hpp"

#include <gmock/gmock.h>

#include <algorithm>

#include "cli/key_table.hpp"
#include "options_fixture.hpp"

namespace offstage::cli {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Options = OptionsFixture;

TEST_F(Options, DefaultsFillWhatIsNotGiven) {
  auto const config = parse();
  EXPECT_EQ(config.train.sequence, 1024);
  EXPECT_EQ(config.train.micro_batch, 1);
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.optimizer.beta2, 0.95);
  EXPECT_EQ(config.optimizer.schedule, train::Schedule::cosine);
  EXPECT_EQ(config.numerics.dtype, DType::bf16);
  EXPECT_TRUE(config.numerics.accumulate_fp32);
  EXPECT_EQ(config.subgroup_size, 100'000'000);
  EXPECT_TRUE(config.subgroup_is_default);
  EXPECT_EQ(config.host_memory, 0);
  EXPECT_EQ(config.tiers_path, "");
  EXPECT_EQ(config.checkpoint.keep, 2);
  EXPECT_EQ(config.checkpoint.every_steps, 0);
  EXPECT_EQ(config.checkpoint.every_time.count(), 0.0);
  EXPECT_TRUE(config.checkpoint.every_auto);
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
             "--model.tied-head=true", "--train.recompute=block", "--optimizer.schedule=wsd",
             "--train.seed=18446744073709551615"});
  EXPECT_EQ(config.host_memory, 3 * GiB / 2);
  EXPECT_EQ(config.subgroup_size, 2'000'000);
  EXPECT_FALSE(config.subgroup_is_default);
  EXPECT_EQ(config.train.max_time.count(), 3600.0);
  EXPECT_EQ(config.checkpoint.every_time.count(), 1800.0);
  EXPECT_EQ(config.checkpoint.every_steps, 0);
  EXPECT_EQ(config.numerics.dtype, DType::fp32);
  EXPECT_FALSE(config.numerics.accumulate_fp32);
  EXPECT_TRUE(config.model.tied_head);
  EXPECT_EQ(config.train.recompute, model::Recompute::block);
  EXPECT_EQ(config.optimizer.schedule, train::Schedule::wsd);
  EXPECT_EQ(config.train.seed, 18446744073709551615U);
}

TEST_F(Options, ABareNumberOfCheckpointEveryMeansSteps) {
  EXPECT_EQ(parse({"--checkpoint.every=50"}).checkpoint.every_steps, 50);
  EXPECT_FALSE(parse({"--checkpoint.every=50"}).checkpoint.every_auto);
  auto const at_the_end = parse({"--checkpoint.every=0"}).checkpoint;
  EXPECT_EQ(at_the_end.every_steps, 0);
  EXPECT_FALSE(at_the_end.every_auto);
  EXPECT_THAT(error({"--checkpoint.every=1.5"}),
              AllOf(HasSubstr("checkpoint.every=1.5"), HasSubstr("50, 30min")));
  EXPECT_THAT(error({"--checkpoint.every=often"}), HasSubstr("checkpoint.every=often"));
}

TEST_F(Options, ValuesMayStandBehindABlank) {
  EXPECT_EQ(parse({"--train.seed", "7"}).train.seed, 7U);
  EXPECT_THAT(error({"--optimizer.lr", "-1"}), HasSubstr("optimizer.lr=-1 must be above 0"));
}

TEST_F(Options, AnEmptyValueClearsAPathThatMayBeEmpty) {
  auto const config = file("a.cfg", "[tiers]\npath = /scratch\n");
  EXPECT_EQ(parse({"--config", config}).tiers_path, "/scratch");
  EXPECT_EQ(parse({"--config", config, "--tiers.path="}).tiers_path, "");
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
  EXPECT_EQ(config.settings.size(), key_table().size());
  EXPECT_TRUE(std::ranges::is_sorted(config.settings, {}, &train::Setting::key));
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
  EXPECT_THAT(error({"--config", file("c.cfg", "[train\n")}), EndsWith("the nearest is [train]"));
}

TEST_F(Options, AKeyTwiceInOneFileIsAnError) {
  auto const path = file("a.cfg", "[train]\nseed = 1\n[data]\nformat = text\n[train]\nseed = 2\n");
  EXPECT_EQ(error({"--config", path}),
            "train.seed=2 (" + path + ":6) stands in " + path + ":2 already; keep one");
}

TEST_F(Options, CommentsEndAValue) {
  auto const path = file("a.cfg", "[train]\nseed = 5 # five\r\n[tiers]\npath = /nvme # fast\n");
  auto const config = parse({"--config", path});
  EXPECT_EQ(config.train.seed, 5U);
  EXPECT_EQ(config.tiers_path, "/nvme");
}

TEST_F(Options, AHashInAPathIsRefused) {
  auto const path = file("a.cfg", "[data]\ntrain = corpus#1.txt\n");
  EXPECT_THAT(error({"--config", path}),
              AllOf(StartsWith("data.train: a path cannot contain '#'"), HasSubstr(path + ":2")));
  EXPECT_THAT(error({"--config", file("b.cfg", "[run]\ndir = my #1 run\n")}),
              StartsWith("run.dir: a path cannot contain '#'"));
  EXPECT_THAT(error({"--tiers.path=/a#b"}), HasSubstr("/a#b"));
  EXPECT_THAT(error({"--checkpoint.resume=/a#b"}), StartsWith("checkpoint.resume"));
}

TEST_F(Options, LinesThatAreNoKeyAreErrors) {
  auto const path = file("a.cfg", "[train]\nsteps 5\n");
  EXPECT_EQ(error({"--config", path}), path + ":2: 'steps 5' is neither [section] nor key = value");
  EXPECT_THAT(error({"train.steps=5"}), HasSubstr("unexpected argument 'train.steps=5'"));
  EXPECT_THAT(error({"-x"}), HasSubstr("unexpected argument '-x'"));
  EXPECT_THAT(error({"--train.steps"}), HasSubstr("--train.steps"));
}

TEST_F(Options, ConfigFilesMustBeThere) {
  EXPECT_THAT(error({"--config=/nowhere/a.cfg"}), StartsWith("--config=/nowhere/a.cfg: cannot"));
  EXPECT_THAT(error({"--config", directory_.path().string()}), HasSubstr("cannot read"));
}

TEST_F(Options, WrongValuesNameKeyValueRemedyAndPlace) {
  auto const path = file("a.cfg", "[optimizer]\nschedule = cosin\n");
  EXPECT_EQ(error({"--config", path}),
            "optimizer.schedule=cosin: 'cosin' is none of constant, linear, cosine, wsd (" + path +
                ":2)");
  EXPECT_EQ(error({"--train.steps=ten"}), "train.steps=ten: 'ten' is not a whole number");
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
  auto const config = parse({"--data.train=a.bin:3,b.bin", "--data.valid=c.bin,d:e.bin:1"});
  ASSERT_EQ(config.data.train.size(), 2U);
  EXPECT_EQ(config.data.train[0].weight, 3.0);
  ASSERT_EQ(config.data.valid.size(), 2U);
  EXPECT_EQ(config.data.valid[1].path, "d:e.bin");
  EXPECT_THAT(error({"--data.valid=c.bin:0.7,d.bin"}),
              AllOf(StartsWith("data.valid=c.bin:0.7,d.bin: the weight 0.7 of c.bin"),
                    HasSubstr("leave weights out")));
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
}

}  // namespace
}  // namespace offstage::cli
