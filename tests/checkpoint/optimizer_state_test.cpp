#include "checkpoint/optimizer_state.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "checkpoint/sample.hpp"

namespace offstage::checkpoint {
namespace {

TEST(OptimizerState, WritesPlanesAsATextThatItReads) {
  EXPECT_EQ(to_text(adamw_layout()), "parameter:fp32,momentum:fp32,variance:fp32");
  EXPECT_EQ(to_text(small_layout()),
            "parameter:fp32,momentum:signed8,variance:unsigned8,momentum_scale:fp32/256,"
            "variance_scale:fp32/256");
  for (StateLayout const& layout : {adamw_layout(), small_layout()}) {
    auto const read = parse_layout(to_text(layout));
    ASSERT_TRUE(read);
    EXPECT_EQ(*read, layout);
  }
}

TEST(OptimizerState, RefusesOtherTexts) {
  for (char const* text :
       {"", "momentum:fp32", "parameter:bf16", "parameter:fp32/2", "parameter", "parameter:fp32,",
        "parameter:fp32,x:fp8", "parameter:fp32,x:fp32/0", "parameter:fp32,x:fp32/-256",
        "parameter:fp32,x:fp32/3", "parameter:fp32,x:fp32/8192", "parameter:fp32,x:fp32/2x",
        "parameter:fp32,x:low16", "parameter:fp32,../x:fp32", "parameter:fp32,X:fp32",
        "parameter:fp32,:fp32", "parameter:fp32,x:fp32,x:fp32", "parameter:fp32,,x:fp32",
        "parameter:fp32,parameter:fp32"}) {
    EXPECT_FALSE(parse_layout(text)) << text;
  }
  std::string many = "parameter:fp32";
  for (char name = 'a'; name <= 'z'; ++name) {
    many += std::string{","} + name + ":fp32";
  }
  EXPECT_FALSE(parse_layout(many));
}

// Whoever converts moments reads a scale of 4 bytes for each block of codes.
TEST(OptimizerState, RefusesScalesThatDoNotFitTheirCodes) {
  EXPECT_TRUE(parse_layout("parameter:fp32,x:signed8,x_scale:fp32/256"));
  EXPECT_TRUE(parse_layout("parameter:fp32,x_scale:fp32/256,x:unsigned8"));
  for (char const* text :
       {"parameter:fp32,x:signed8", "parameter:fp32,x:signed8,x_scale:bf16/256",
        "parameter:fp32,x:signed8,x_scale:fp32/4096", "parameter:fp32,x:signed8,x_scale:fp32",
        "parameter:fp32,x:signed8/256,x_scale:fp32/256",
        "parameter:fp32,x:signed8,y_scale:fp32/256", "parameter:fp32,x:fp32,x_scale:fp32/256",
        "parameter:fp32,x_scale:fp32/256", "parameter:fp32,x:fp32/256"}) {
    EXPECT_FALSE(parse_layout(text)) << text;
  }
}

TEST(OptimizerState, HasNoTypeForHalvesOfParameters) {
  EXPECT_THROW((void)dataset_type({"parameter", PlaneType::low16}), PreconditionError);
}

TEST(OptimizerState, PadsDatasetsAsPlanesAre) {
  EXPECT_EQ(dataset_values(small_layout(), 1, chunk_elements), chunk_elements);
  EXPECT_EQ(dataset_values(small_layout(), 3, chunk_elements), 1024);
}

}  // namespace
}  // namespace offstage::checkpoint
