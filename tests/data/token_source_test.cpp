#include "data/token_source.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include "base/error.hpp"
#include "temporary_directory.hpp"

namespace offstage::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// The message of the DataError that `work` throws.
template <class Work>
std::string data_error(Work const& work) {
  try {
    work();
  } catch (DataError const& error) {
    return error.what();
  }
  return "no DataError";
}

TEST(TextFile, BytesAreTokens) {
  TemporaryDirectory const folder;
  TextFile const file{folder.write("a.txt", "ab\n\xFF"), "data.train", 256};
  ASSERT_EQ(file.tokens(), 4);
  std::vector<unsigned char> bytes(3);
  file.read(1, bytes);
  EXPECT_THAT(bytes, ElementsAre('b', '\n', 255));
  file.read(4, {});
  EXPECT_THROW(file.read(2, bytes), PreconditionError);
  EXPECT_THROW(file.read(-1, bytes), PreconditionError);
}

TEST(TextFile, WhatBecomesShorterDuringTheRunIsADataError) {
  TemporaryDirectory const folder;
  auto const path = folder.write("a.txt", std::string(10'000, 'x'));
  TextFile const file{path, "data.train", 256};
  Windows const windows{file, "data.train", 99};
  std::filesystem::resize_file(path, 5'000);
  std::vector<std::int64_t> const kept{0};
  EXPECT_EQ(windows.batch(kept).tokens.size(), 99U);
  std::vector<std::int64_t> const gone{100};
  EXPECT_THAT(data_error([&] { (void)windows.batch(gone); }),
              AllOf(HasSubstr("data.train=" + path), HasSubstr("had 10000 bytes"),
                    HasSubstr("ends before byte 9900")));
  EXPECT_THAT(data_error([&] { (void)file.unigram_entropy(); }), HasSubstr("before byte 5000"));
}

TEST(TextFile, AByteThatIsNoTokenIsFoundEvenIfItCameDuringTheRun) {
  TemporaryDirectory const folder;
  auto const path = folder.write("a.txt", "abcdefgh");
  TextFile const file{path, "data.train", 128};
  folder.write("a.txt", "abc\xE9\x66gh!");
  std::vector<unsigned char> bytes(3);
  file.read(0, bytes);
  EXPECT_THAT(data_error([&] { file.read(2, bytes); }), HasSubstr("byte 233 at offset 3"));
}

TEST(TextFile, ReadsLongFilesThroughInPieces) {
  TemporaryDirectory const folder;
  std::string text(3'000'000, 'a');
  std::fill(text.begin() + 1'500'000, text.end(), 'b');
  auto const path = folder.write("a.txt", text);
  EXPECT_NEAR((TextFile{path, "data.train", 128}.unigram_entropy()), std::log(2.0), 1e-15);
  text.back() = '\xFF';
  folder.write("a.txt", text);
  EXPECT_THAT(data_error([&] {
                TextFile{path, "data.train", 128};
              }),
              HasSubstr("byte 255 at offset 2999999"));
}

TEST(TextFile, SaysWhichKeyNamesAMissingFile) {
  EXPECT_THAT(data_error([] {
                TextFile{"/nowhere/a.txt", "data.valid", 256};
              }),
              AllOf(HasSubstr("data.valid=/nowhere/a.txt"), HasSubstr("No such file")));
}

TEST(TextFile, RefusesAnEmptyFileAndWhatIsNoFile) {
  TemporaryDirectory const folder;
  EXPECT_THAT(data_error([&] {
                TextFile{folder.write("a.txt", ""), "data.train", 256};
              }),
              HasSubstr("empty"));
  EXPECT_THAT(data_error([&] {
                TextFile{folder.path().string(), "data.train", 256};
              }),
              HasSubstr("not a regular file"));
  auto const pipe = (folder.path() / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(data_error([&] {
                TextFile{pipe, "data.train", 256};
              }),
              HasSubstr("not a regular file"));
}

TEST(TextFile, NamesTheFirstByteBeyondTheVocabulary) {
  TemporaryDirectory const folder;
  auto const path = folder.write("a.txt", "abc\xC3\xA9");
  EXPECT_THAT(data_error([&] {
                TextFile{path, "data.train", 128};
              }),
              AllOf(HasSubstr("byte 195 at offset 3"), HasSubstr("model.vocab=128"),
                    HasSubstr("data.train=" + path)));
  EXPECT_EQ((TextFile{path, "data.train", 196}.tokens()), 5);
}

TEST(TextFile, EntropyOfSingleBytes) {
  TemporaryDirectory const folder;
  auto const entropy = [&](std::string_view text) {
    return TextFile{folder.write("a.txt", text), "data.train", 256}.unigram_entropy();
  };
  EXPECT_EQ(entropy("aaaa"), 0.0);
  EXPECT_NEAR(entropy("abab"), std::log(2.0), 1e-15);
  EXPECT_NEAR(entropy("aaab"), 0.75 * std::log(4.0 / 3.0) + 0.25 * std::log(4.0), 1e-15);
}

TEST(Windows, NeighboursShareOneToken) {
  TemporaryDirectory const folder;
  TextFile const file{folder.write("a.txt", "abcdefgh"), "data.train", 256};
  Windows const windows{file, "data.train", 3};
  ASSERT_EQ(windows.count(), 2);  // abc|d and def|g; h starts no window
  std::vector<std::int64_t> const order{1, 0};
  TokenBatch const batch = windows.batch(order);
  EXPECT_EQ(batch.batch, 2);
  EXPECT_EQ(batch.sequence, 3);
  EXPECT_THAT(batch.tokens, ElementsAre('d', 'e', 'f', 'a', 'b', 'c'));
  EXPECT_THAT(batch.targets, ElementsAre('e', 'f', 'g', 'b', 'c', 'd'));
}

TEST(Windows, SequenceAndOneTokensAreOneWindow) {
  TemporaryDirectory const folder;
  TextFile const file{folder.write("a.txt", "abcd"), "data.train", 256};
  EXPECT_EQ((Windows{file, "data.train", 3}.count()), 1);
  EXPECT_EQ((Windows{file, "data.train", 3}.shuffled(7, 1)), 0);
  EXPECT_THAT(data_error([&] {
                Windows{file, "data.train", 4};
              }),
              AllOf(HasSubstr("data.train=" + file.path()), HasSubstr("has 4 tokens"),
                    HasSubstr("train.sequence=4 needs at least 5")));
}

TEST(Windows, EveryEpochShowsEveryWindowOnceInItsOwnOrder) {
  TemporaryDirectory const folder;
  TextFile const file{folder.write("a.txt", std::string(301, 'x')), "data.train", 256};
  Windows const windows{file, "data.train", 3};
  ASSERT_EQ(windows.count(), 100);
  std::set<std::vector<std::int64_t>> orders;
  for (std::uint64_t const seed : {1U, 2U}) {
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<std::int64_t> order;
      for (std::int64_t s = 0; s < 100; ++s) {
        order.push_back(windows.shuffled(epoch * 100 + s, seed));
      }
      orders.insert(order);
      std::vector<std::int64_t> all(100);
      std::iota(all.begin(), all.end(), 0);
      EXPECT_THAT(order, testing::UnorderedElementsAreArray(all));
    }
  }
  EXPECT_EQ(orders.size(), 6U);
}

TEST(Windows, RefusesAWindowThatIsNotThere) {
  TemporaryDirectory const folder;
  TextFile const file{folder.write("a.txt", "abcd"), "data.train", 256};
  Windows const windows{file, "data.train", 3};
  std::vector<std::int64_t> const beyond{1};
  EXPECT_THROW((void)windows.batch(beyond), PreconditionError);
  EXPECT_THROW((void)windows.shuffled(-1, 1), PreconditionError);
}

}  // namespace
}  // namespace offstage::data
