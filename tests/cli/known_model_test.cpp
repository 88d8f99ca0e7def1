#include "cli/known_model.hpp"

#include <gmock/gmock.h>

#include <filesystem>

#include "huggingface/model_directory.hpp"
#include "options_fixture.hpp"

namespace offstage::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// A LLaMA in a Hugging Face directory, and a run that says nothing of its model.
class KnownModels : public OptionsFixture {
 protected:
  KnownModels() {
    huggingface::ModelWriter writer{path_, shape_, DType::fp32, GiB};
    writer.create();
    writer.commit();
  }

  [[nodiscard]] std::vector<std::string> run(std::vector<std::string> const& more = {}) const {
    std::vector<std::string> all{"--run.dir=" + (directory_.path() / "run").string(),
                                 "--data.train=a.txt", "--train.steps=10", "--train.sequence=16"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  [[nodiscard]] std::string from() const { return "--train.init-from=" + path_; }

  std::string path_ = directory_.path() / "model";
  state::ModelShape shape_{.family = state::Family::llama,
                           .layers = 3,
                           .hidden = 32,
                           .heads = 4,
                           .kv_heads = 2,
                           .ffn_hidden = 48,
                           .vocab = 100,
                           .max_sequence = 64,
                           .tied_head = true,
                           .qkv_bias = true,
                           .rope_theta = 123'456.7,
                           .norm_epsilon = 1.0 / 3.0};
};

TEST_F(KnownModels, FillEveryKeyAndSayWhereItIsFrom) {
  auto const config = parse_train_options(run({from()}));
  EXPECT_EQ(config.model, shape_);
  EXPECT_EQ(setting(config, "model.kv-heads").origin, "train.init-from=" + path_);
}

TEST_F(KnownModels, AreNeededWhereKeysAreMissing) {
  EXPECT_THAT(error_of(run()), AllOf(StartsWith("model.family, model.layers"),
                                     HasSubstr("train.init-from may name a model instead")));
}

TEST_F(KnownModels, MayBeSaidAgainAndMadeForAnotherLength) {
  auto const config = parse_train_options(
      run({from(), "--model.hidden=32", "--model.rope-theta=123456.7", "--model.max-sequence=16"}));
  EXPECT_EQ(config.model.max_sequence, 16);
  EXPECT_TRUE(same_parameters(config.model, shape_));
  EXPECT_EQ(setting(config, "model.hidden").origin, "--model.hidden=32");
}

TEST_F(KnownModels, RefuseKeysThatDoNotAgreeWithTheirPlace) {
  auto const place = file("a.cfg", "[model]\nlayers = 3\nvocab = 99\n");
  EXPECT_EQ(error_of(run({from(), "--config=" + place})),
            "model.vocab=99 (" + place + ":3) is not the 100 of train.init-from=" + path_ +
                "; leave it out, or name more: tokens can be added");
  EXPECT_THAT(error_of(run({from(), "--model.tied-head=false"})),
              StartsWith("model.tied-head=false is not the true of train.init-from="));
}

TEST_F(KnownModels, MayHaveTokensAdded) {
  auto const config = parse_train_options(run({from(), "--model.vocab=101"}));
  auto grown = shape_;
  grown.vocab = 101;
  EXPECT_EQ(config.model, grown);
}

TEST_F(KnownModels, AreNotLookedForInAnEmptyDirectoryOfCheckpoints) {
  config::RunConfig config;
  config.checkpoint.resume = "auto";
  config.checkpoint.dir = directory_.path() / "none";
  EXPECT_FALSE(find_known_model(config));
  std::filesystem::create_directories(directory_.path() / "checkpoints/step-000000003");
  directory_.write("checkpoints/step-000000003/rank-0000.h5", "unfinished");
  config.checkpoint.dir = directory_.path() / "checkpoints";
  EXPECT_FALSE(find_known_model(config));
  config.train.init_from = path_;
  ASSERT_TRUE(find_known_model(config));
  EXPECT_EQ(find_known_model(config)->shape, shape_);
}

}  // namespace
}  // namespace offstage::cli
