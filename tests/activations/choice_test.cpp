#include "activations/choice.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "model/dims.hpp"
#include "state/model_shape.hpp"

namespace offstage::activations {
namespace {

using model::Fate;
using model::Part;
using Rule = Policy::Rule;

/// Of 512 rows. A product's element costs 2 C operations, attention's some 2 T: with 16 tokens it
/// is worth least, with 512 most.
model::Dims dims(std::int64_t sequence) {
  state::ModelShape const shape{.layers = 8,
                                .hidden = 64,
                                .heads = 4,
                                .kv_heads = 4,
                                .ffn_hidden = 128,
                                .vocab = 256,
                                .max_sequence = 512};
  return model::dims_of(shape, {.batch = 512 / sequence, .sequence = sequence});
}

std::int64_t leaving(std::vector<model::BlockFates> const& fates, Part part) {
  return std::ranges::count(fates, Fate::leave, [&](auto const& of) { return of[part]; });
}

TEST(Policy, IsReadAsItIsWritten) {
  for (std::string const text : {"auto", "keep", "keep:0.5", "keep:1", "recompute", "host", "0",
                                 "0.25", "storage", "storage:0.5"}) {
    EXPECT_EQ(describe(parse_policy(text)), text);
  }
  EXPECT_EQ(parse_policy("1").rule, Rule::swap);
  for (std::string const text : {"", "all", "-0.1", "1.1", "nan", "0.5x", "block", "storage:",
                                 "storage:2", "host:1", "keep:", "keep:1.5", "storage:keep:1"}) {
    EXPECT_THROW((void)parse_policy(text), UsageError) << text;
  }
}

TEST(BlockFates, OfKeepAndRecomputeAreAllAlike) {
  EXPECT_EQ(block_fates<bfloat16>({Rule::keep}, dims(16), 3), std::vector(3, model::kept_block));
  EXPECT_EQ(block_fates<bfloat16>({Rule::automatic}, dims(16), 3),
            std::vector(3, model::kept_block));
  EXPECT_EQ(block_fates<bfloat16>({Rule::recompute}, dims(16), 3),
            std::vector(3, model::recomputed_block));
  EXPECT_EQ(block_fates<bfloat16>({Rule::swap, 1.0}, dims(16), 3),
            std::vector(3, model::leaving_block));
}

TEST(BlockFates, OfAShareSwapFirstWhatIsWorthMost) {
  // In units of C numbers a row qkv has 3, mid 1, up 4 and attention a little more than 1.
  auto const third = block_fates<bfloat16>({Rule::swap, 0.345}, dims(16), 8);
  EXPECT_EQ(leaving(third, Part::input), 8);
  EXPECT_EQ(leaving(third, Part::qkv), 8);
  EXPECT_EQ(leaving(third, Part::mid), 1);
  EXPECT_EQ(leaving(third, Part::up), 0);
  EXPECT_EQ(leaving(third, Part::attention), 0);
  auto const long_ones = block_fates<bfloat16>({Rule::swap, 0.13}, dims(512), 8);
  EXPECT_EQ(leaving(long_ones, Part::attention), 8);
  EXPECT_EQ(leaving(long_ones, Part::qkv), 0);
  EXPECT_EQ(leaving(block_fates<bfloat16>({Rule::swap, 0.0}, dims(16), 8), Part::input), 8);
}

TEST(BlockFates, OfAShareThatStaysAreThoseThatWouldLeave) {
  for (double const share : {0.0, 0.13, 0.345, 0.8, 1.0}) {
    auto const leaving = block_fates<bfloat16>({Rule::swap, share}, dims(16), 8);
    auto const staying = block_fates<bfloat16>({Rule::part, share}, dims(16), 8);
    for (std::size_t block = 0; block < leaving.size(); ++block) {
      for (Part const part : model::all_parts) {
        bool const leaves = leaving[block][part] == Fate::leave;
        EXPECT_EQ(staying[block][part], leaves ? Fate::keep : Fate::recompute);
      }
    }
  }
}

TEST(BlockFates, OfAShareAreSpreadOverTheBlocks) {
  // qkv is a third and a little less of all; half of it leaves.
  auto const fates = block_fates<float>({Rule::swap, 0.165}, dims(16), 8);
  std::string blocks;
  for (auto const& of : fates) {
    blocks += of[Part::qkv] == Fate::leave ? 'x' : '.';
  }
  EXPECT_EQ(blocks, ".x.x.x.x");
}

TEST(PaperChoice, FollowsTheLink) {
  Rates rates{.compute = 1e9, .host_to_device = 1e12, .device_to_host = 1e12};
  plan::SwapCompany company;
  EXPECT_EQ(paper_choice<bfloat16>(rates, company, dims(16), {8, 2}).share, 1.0);
  EXPECT_LT(paper_choice<bfloat16>(rates, company, dims(16), {8, 2}).seconds,
            recompute_seconds<bfloat16>(rates, company, dims(16), {8, 2}, {Rule::recompute}));
  rates.host_to_device = rates.device_to_host = 1e3;
  EXPECT_EQ(paper_choice<bfloat16>(rates, company, dims(16), {8, 2}).share, 0.0);
  EXPECT_GT(paper_choice<bfloat16>(rates, company, dims(16), {8, 2}).seconds,
            recompute_seconds<bfloat16>(rates, company, dims(16), {8, 2}, {Rule::recompute}));
  EXPECT_LT(recompute_seconds<bfloat16>(rates, company, dims(16), {8, 1}, {Rule::part, 0.5}),
            recompute_seconds<bfloat16>(rates, company, dims(16), {8, 1}, {Rule::recompute}));
  company.parameters = 1'000'000;
  EXPECT_GE(recompute_seconds<bfloat16>(rates, company, dims(16), {8, 2}, {Rule::recompute}),
            Seconds{2000})
      << "they come twice";
}

}  // namespace
}  // namespace offstage::activations
