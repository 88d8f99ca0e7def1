#include "config/other_names.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "config/key_table.hpp"

namespace offstage::config {
namespace {

TEST(OtherNames, EachNamesAKeyAndIsNone) {
  for (auto const& [word, key] : other_names()) {
    EXPECT_NE(find_key(key), nullptr) << word;
    EXPECT_TRUE(std::ranges::none_of(key_table(), [word](Key const& known) {
      return known.name.substr(known.name.find('.') + 1) == word;
    })) << word;
  }
}

TEST(OtherNames, WithoutAKeyAreNeitherKeysNorNamesOfKeys) {
  for (auto const& [word, sentence] : words_without_key()) {
    EXPECT_FALSE(sentence.empty()) << word;
    EXPECT_EQ(key_of_other_name(word), "") << word;
    EXPECT_TRUE(std::ranges::none_of(key_table(), [word](Key const& known) {
      return known.name.substr(known.name.find('.') + 1) == word;
    })) << word;
  }
}

TEST(OtherNames, SectionAndUnderscoresAreLeftOut) {
  EXPECT_EQ(key_of_other_name("optimizer.learning_rate"), "optimizer.lr");
  EXPECT_EQ(key_of_other_name("max_grad_norm"), "optimizer.clip");
  EXPECT_EQ(key_of_other_name("learning-rates"), "");
  EXPECT_EQ(instead_of_key("model.attention_dropout"), "there is no dropout");
  EXPECT_EQ(instead_of_key("dropouts"), "");
  EXPECT_EQ(key_of_other_name("out_dir"), "run.dir");
}

TEST(OtherNames, AreFoundByTheLongestPart) {
  EXPECT_EQ(key_of_other_name("zero_optimization.stage"), "parameters.sharding");
  EXPECT_EQ(key_of_other_name("zero_optimization.offload_param.device"), "parameters.home");
  EXPECT_EQ(key_of_other_name("zero_optimization.offload_optimizer.device"), "");
  EXPECT_EQ(instead_of_key("zero_optimization.offload_optimizer.device"),
            instead_of_key("offload_optimizer"));
  EXPECT_EQ(key_of_other_name("train.device"), "device.kind");
  EXPECT_NE(instead_of_key("aio.block_size"), "");
  EXPECT_EQ(key_of_other_name("aio.block_size"), "");
  EXPECT_EQ(key_of_other_name("block_size"), "train.sequence");
}

TEST(OtherNames, MayBeKnownInASectionAlone) {
  EXPECT_EQ(key_of_other_name("data.path"), "data.train");
  EXPECT_EQ(key_of_other_name("checkpoint.path"), "");
  EXPECT_EQ(instead_of_key("lora.r"), instead_of_key("train.lora"));
  EXPECT_EQ(instead_of_key("lora.rank"), instead_of_key("lora.r"));
  EXPECT_EQ(instead_of_key("model.r"), "");
  EXPECT_NE(instead_of_key("optimizer.betas"), "");
  EXPECT_NE(instead_of_key("data.shuffle"), "");
  EXPECT_NE(instead_of_key("train.freeze"), "");
}

}  // namespace
}  // namespace offstage::config
