#include "data/summary.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "formats.hpp"
#include "temporary_directory.hpp"

namespace offstage::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;

Summary summary_of(std::string const& path, std::optional<std::int32_t> separator = {}) {
  return summarize(*open_tokens({.path = path, .key = "", .vocab = 65'536}), separator);
}

TEST(Summary, EntropyOfSingleTokens) {
  TemporaryDirectory const folder;
  auto const entropy = [&](std::string_view text) {
    return summary_of(folder.write("a.txt", text)).unigram_entropy;
  };
  EXPECT_EQ(entropy("aaaa"), 0.0);
  EXPECT_NEAR(entropy("abab"), std::log(2.0), 1e-15);
  EXPECT_NEAR(entropy("aaab"), 0.75 * std::log(4.0 / 3.0) + 0.25 * std::log(4.0), 1e-15);
  EXPECT_NEAR(entropy(std::string(1'500'000, 'a') + std::string(1'500'000, 'b')), std::log(2.0),
              1e-15);
}

TEST(Summary, NamesSmallestAndLargestToken) {
  TemporaryDirectory const folder;
  auto const path = folder.write("a.bin", array_of<std::uint16_t>({7, 50'256, 3, 3}));
  auto const summary = summary_of(path);
  EXPECT_EQ(summary.tokens, 4);
  EXPECT_EQ(summary.smallest, 3);
  EXPECT_EQ(summary.largest, 50'256);
  EXPECT_EQ(summary.document_tokens, std::nullopt);
}

TEST(Summary, SortsDocumentsByLength) {
  TemporaryDirectory const folder;
  folder.write("a.idx", Index{{3, 1, 2}}.bytes());
  auto const path = folder.write("a.bin", array_of<std::uint16_t>({1, 1, 0, 0, 1, 0}));
  EXPECT_THAT(summary_of(path).document_tokens, Optional(ElementsAre(1, 2, 3)));
  // A separator counts only where the format does not say where documents end.
  EXPECT_THAT(summary_of(path, 1).document_tokens, Optional(ElementsAre(1, 2, 3)));
  EXPECT_THAT(summary_of(folder.write("b.txt", "aabaaab"), 'b').document_tokens,
              Optional(ElementsAre(3, 4)));
}

TEST(Summary, AFileCutWhileItIsReadIsADataErrorWithoutKey) {
  TemporaryDirectory const folder;
  auto const path = folder.write("a.txt", std::string(10'000, 'x'));
  auto const file = open_tokens({.path = path, .key = "", .vocab = 256});
  std::filesystem::resize_file(path, 5'000);
  auto const message = data_error([&] { (void)summarize(*file, {}); });
  EXPECT_EQ(message.find(path), 0U);
  EXPECT_THAT(message, HasSubstr("before byte 5000"));
}

}  // namespace
}  // namespace offstage::data
