#include "data/loss_mask.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <filesystem>

#include "formats.hpp"
#include "temporary_directory.hpp"

namespace offstage::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::uint64_t checksum(std::string const& bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

/// Of nanogpt tokens 1 2 3 4 5, right unless a test changes it.
struct Mask {
  std::string magic = "OFFMASK1";
  std::uint64_t tokens = 5;
  std::uint64_t counted = 2;
  std::string bytes{"\0\0\1\0\1", 5};
  std::uint64_t tokens_checksum = checksum(array_of<std::int32_t>({1, 2, 3, 4, 5}));
  std::uint64_t mask_checksum = checksum(bytes);

  [[nodiscard]] std::string contents() const {
    return magic + array_of<std::uint64_t>({tokens, counted, tokens_checksum, mask_checksum}) +
           bytes;
  }
};

class LossMasks : public testing::Test {
 protected:
  std::unique_ptr<LossMask> open(Mask const& mask) const {
    folder.write("a.mask", mask.contents());
    return LossMask::beside(*tokens, "data.train");
  }
  std::string refusal(Mask const& mask) const {
    return data_error([&] { open(mask)->verify(*tokens); });
  }

  TemporaryDirectory folder;
  std::unique_ptr<TokenFile> tokens =
      open_tokens({.path = folder.write("a.bin", array_of<std::uint16_t>({1, 2, 3, 4, 5})),
                   .key = "data.train",
                   .vocab = 10});
};

TEST_F(LossMasks, AreFoundByName) {
  EXPECT_EQ(LossMask::beside(*tokens, "data.train"), nullptr);
  EXPECT_EQ(mask_path_of("x/a.bin"), "x/a.mask");
  EXPECT_EQ(mask_path_of("x/a.txt"), "x/a.txt.mask");
  auto const mask = open({});
  ASSERT_NE(mask, nullptr);
  EXPECT_EQ(mask->counted(), 2);
  std::vector<std::uint8_t> counts(3);
  mask->read(2, counts);
  EXPECT_THAT(counts, ElementsAre(1, 0, 1));
  mask->verify(*tokens);
}

TEST_F(LossMasks, WithoutChecksumsAreTakenAsTheyAre) {
  Mask mask;
  mask.tokens_checksum = mask.mask_checksum = 0;
  open(mask)->verify(*tokens);
}

TEST_F(LossMasks, OfOtherTokensOrDamagedAreRefused) {
  auto const changed = [](auto const& change) {
    Mask mask;
    change(mask);
    return mask;
  };
  EXPECT_THAT(refusal(changed([](Mask& m) { m.magic = "OFFMASK2"; })),
              AllOf(HasSubstr("data.train=" + folder.path().string() + "/a.mask"),
                    HasSubstr("is no mask")));
  EXPECT_THAT(refusal(changed([](Mask& m) { m.tokens = 4; })),
              HasSubstr("is the mask of 4 tokens, but there are 5"));
  EXPECT_THAT(refusal(changed([](Mask& m) { m.bytes += '\0'; })),
              HasSubstr("has 46 bytes, but 5 tokens need 45"));
  EXPECT_THAT(refusal(changed([](Mask& m) { m.counted = 0; })), HasSubstr("0 of 5 tokens count"));
  EXPECT_THAT(refusal(changed([](Mask& m) { m.counted = 3; })),
              HasSubstr("says that 3 tokens count, but 2 do"));
  EXPECT_THAT(refusal(changed([](Mask& m) { m.tokens_checksum = 1; })),
              AllOf(HasSubstr("belongs to other tokens"), HasSubstr("a.bin")));
  EXPECT_THAT(refusal(changed([](Mask& m) { m.mask_checksum = 1; })), HasSubstr("is damaged"));
  EXPECT_THAT(refusal(changed([](Mask& m) { m.bytes[1] = 2; })),
              HasSubstr("has the byte 2 for token 1"));
  folder.write("a.mask", "OFF");
  EXPECT_THAT(data_error([&] { static_cast<void>(LossMask::beside(*tokens, "data.train")); }),
              HasSubstr("is no mask"));
}

}  // namespace
}  // namespace offstage::data
