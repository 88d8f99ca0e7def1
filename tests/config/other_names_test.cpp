#include "config/other_names.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "config/key_table.hpp"

namespace offstage::config {
namespace {

TEST(OtherNames, EachNamesAKeyAndIsNone) {
  for (auto const& [word, key] : other_names()) {
    EXPECT_NE(find_key(key), nullptr) << word;
    EXPECT_EQ(find_key(word), nullptr) << word;
  }
}

TEST(OtherNames, WithoutAKeyAreNeitherKeysNorNamesOfKeys) {
  for (auto const& [word, sentence] : words_without_key()) {
    EXPECT_FALSE(sentence.empty()) << word;
    EXPECT_EQ(in_place_of(word).key, "") << word;
    EXPECT_TRUE(std::ranges::none_of(key_table(), [word](Key const& known) {
      return known.name.substr(known.name.find('.') + 1) == word;
    })) << word;
  }
}

TEST(OtherNames, KeysOfEarlierBuildsAreKnown) {
  for (char const* const key : {"train.recompute", "platform.conversion"}) {
    EXPECT_NE(in_place_of(key).sentence, "") << key;
  }
}

TEST(OtherNames, SectionAndUnderscoresAreLeftOut) {
  EXPECT_EQ(in_place_of("optimizer.learning_rate").key, "optimizer.lr");
  EXPECT_EQ(in_place_of("max_grad_norm").key, "optimizer.clip");
  EXPECT_EQ(in_place_of("learning-rates").key, "");
  EXPECT_EQ(in_place_of("model.attention_dropout").sentence, "there is no dropout");
  EXPECT_EQ(in_place_of("dropouts").sentence, "");
  EXPECT_EQ(in_place_of("out_dir").key, "run.dir");
  EXPECT_EQ(in_place_of("num_train_epochs").key, "train.steps");
  EXPECT_EQ(in_place_of("sequence_len").key, "train.sequence");
  EXPECT_EQ(in_place_of("train_on_inputs").sentence, in_place_of("assistant_only_loss").sentence);
}

TEST(OtherNames, AreFoundByTheLongestPart) {
  EXPECT_EQ(in_place_of("zero_optimization.stage").key, "parameters.sharding");
  EXPECT_EQ(in_place_of("zero_optimization.offload_param.device").key, "parameters.home");
  EXPECT_EQ(in_place_of("zero_optimization.offload_optimizer.device").key, "");
  EXPECT_EQ(in_place_of("zero_optimization.offload_optimizer.device").sentence,
            in_place_of("offload_optimizer").sentence);
  EXPECT_EQ(in_place_of("train.device").key, "device.kind");
  EXPECT_NE(in_place_of("aio.block_size").sentence, "");
  EXPECT_EQ(in_place_of("aio.block_size").key, "");
  EXPECT_EQ(in_place_of("block_size").key, "train.sequence");
}

TEST(OtherNames, MayBeKnownInASectionAlone) {
  EXPECT_EQ(in_place_of("data.path").key, "data.train");
  EXPECT_EQ(in_place_of("checkpoint.path").key, "");
  EXPECT_EQ(in_place_of("lora.r").sentence, in_place_of("train.lora").sentence);
  EXPECT_EQ(in_place_of("lora.rank").sentence, in_place_of("lora.r").sentence);
  EXPECT_EQ(in_place_of("model.r").sentence, "");
  EXPECT_EQ(in_place_of("checkpoint.interval").key, "checkpoint.every");
  EXPECT_EQ(in_place_of("train.interval").key, "");
  EXPECT_EQ(in_place_of("fp16.initial_scale_power").sentence.find("numerics.loss-scale-start"), 0);
  EXPECT_NE(in_place_of("optimizer.betas").sentence, "");
  EXPECT_NE(in_place_of("data.shuffle").sentence, "");
  EXPECT_NE(in_place_of("train.freeze").sentence, "");
}

}  // namespace
}  // namespace offstage::config
