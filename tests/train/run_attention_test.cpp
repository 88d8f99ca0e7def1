#include "train/settle/run_attention.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.hpp"

namespace offstage::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

AttentionFacts on_gpus() {
  return {.gpus = true, .planned = true, .about = "cuDNN 9.19.0 (eng2, eng6)", .workspace = GiB};
}

std::string error_of(config::Attention asked, AttentionFacts const& facts) {
  try {
    static_cast<void>(choose_attention(asked, facts));
  } catch (UsageError const& error) {
    return error.what();
  }
  return {};
}

TEST(RunAttention, IsCudnnsWhereItHasPlansAndRoom) {
  for (auto const asked : {config::Attention::automatic, config::Attention::cudnn}) {
    auto const choice = choose_attention(asked, on_gpus());
    EXPECT_TRUE(choice.cudnn);
    EXPECT_EQ(choice.text, "cuDNN 9.19.0 (eng2, eng6), workspace 1.00 GiB");
    EXPECT_THAT(choice.warning, IsEmpty());
  }
  auto const own = choose_attention(config::Attention::own, on_gpus());
  EXPECT_FALSE(own.cudnn);
  EXPECT_EQ(own.text, "own kernels (device.attention=own)");
}

TEST(RunAttention, IsTheOwnKernelsWhereCudnnHasNoPlansOrAnErrorIfItIsAskedFor) {
  auto facts = on_gpus();
  facts.planned = false;
  facts.about = "cuDNN: it cannot be loaded";
  auto const choice = choose_attention(config::Attention::automatic, facts);
  EXPECT_FALSE(choice.cudnn);
  EXPECT_EQ(choice.text, "own kernels (cuDNN: it cannot be loaded)");
  EXPECT_THAT(choice.warning, IsEmpty());
  EXPECT_THAT(error_of(config::Attention::cudnn, facts),
              AllOf(HasSubstr("cannot be loaded"), HasSubstr("device.attention=auto")));
}

TEST(RunAttention, SaysThatItLeavesCudnnOutForWantOfMemoryWhichChangesBits) {
  auto facts = on_gpus();
  facts.has_room = false;
  auto const choice = choose_attention(config::Attention::automatic, facts);
  EXPECT_FALSE(choice.cudnn);
  EXPECT_THAT(choice.warning, AllOf(HasSubstr("1.00 GiB"), HasSubstr("changes bits"),
                                    HasSubstr("device.attention=own")));
  EXPECT_TRUE(choose_attention(config::Attention::cudnn, facts).cudnn)
      << "what there is no room for is said where it is allocated";
}

TEST(RunAttention, IsNobodysChoiceWithoutGpus) {
  EXPECT_THAT(choose_attention(config::Attention::automatic, {}).text, IsEmpty());
  EXPECT_THAT(choose_attention(config::Attention::own, {}).text, IsEmpty());
  EXPECT_THAT(error_of(config::Attention::cudnn, {}), HasSubstr("device.kind=cuda"));
}

TEST(RunAttention, IsPlannedByTheShapeOfAMicroBatch) {
  config::RunConfig config;
  config.model = {.layers = 2, .hidden = 512, .heads = 8, .kv_heads = 2};
  config.train.sequence = 1024;
  config.train.micro_batch = 2;
  config.numerics.dtype = DType::bf16;
  config.device.kind = config::DeviceKind::cuda;
  auto const facts = planned_attention(config);
  EXPECT_TRUE(facts.gpus);
  EXPECT_EQ(facts.planned, cudnn::is_built_in());
  if (cudnn::is_built_in()) {
    EXPECT_EQ(facts.workspace, cudnn::largest_workspace({DType::bf16, 2, 1024, 8, 2, 64}));
  }
  config.numerics.dtype = DType::fp32;
  EXPECT_FALSE(planned_attention(config).planned);
}

TEST(RunAttention, NamesWhatMultipliesBf16OnTheCores) {
  EXPECT_EQ(bf16_on_host(kernels::Bf16Unit::amx), "bf16 products by AMX");
  EXPECT_EQ(bf16_on_host(kernels::Bf16Unit::avx512_bf16), "bf16 products by AVX512-BF16");
  EXPECT_EQ(bf16_on_host(kernels::Bf16Unit::none), "bf16 widened to FP32");
}

}  // namespace
}  // namespace offstage::train
