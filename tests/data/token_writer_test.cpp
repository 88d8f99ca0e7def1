#include "data/token_writer.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>

#include "formats.hpp"
#include "temporary_directory.hpp"

namespace offstage::data {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

std::string contents(std::string const& path) {
  std::ifstream file{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}

std::vector<std::string> files_in(TemporaryDirectory const& folder) {
  std::vector<std::string> names;
  for (auto const& entry : fs::directory_iterator{folder.path()}) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

class Writer : public testing::Test {
 protected:
  /// Writes documents "1 2 3" and "4 5".
  void write(Format format, std::int64_t vocab) const {
    TokenWriter writer{prefix, format, vocab};
    writer.write(std::vector{1, 2});
    writer.write(std::vector{3});
    writer.end_document();
    writer.end_document();  // nothing since
    writer.write(std::vector{4, 5});
    writer.finish();
    writer.keep();
    name_token_files(prefix, format, false);
    EXPECT_EQ(writer.tokens(), 5);
    EXPECT_EQ(writer.documents(), 2);
  }

  TemporaryDirectory folder;
  std::string prefix = (folder.path() / "out").string();
};

TEST_F(Writer, MegatronHasAnIndexOfItsDocuments) {
  write(Format::megatron, 65'536);
  EXPECT_EQ(contents(prefix + ".bin"), array_of<std::uint16_t>({1, 2, 3, 4, 5}));
  EXPECT_EQ(contents(prefix + ".idx"), (Index{{3, 2}}.bytes()));
}

TEST_F(Writer, MegatronTakesI32BeyondU16) {
  write(Format::megatron, 65'537);
  EXPECT_EQ(contents(prefix + ".bin"), array_of<std::int32_t>({1, 2, 3, 4, 5}));
  Index index{{3, 2}, 4};
  index.type = 4;
  EXPECT_EQ(contents(prefix + ".idx"), index.bytes());
}

TEST_F(Writer, LlmcHasAHeaderForEitherWidth) {
  write(Format::llmc, 65'536);
  EXPECT_EQ(contents(prefix + ".bin"),
            llmc_header(20240520, 1, 5) + array_of<std::uint16_t>({1, 2, 3, 4, 5}));
  fs::remove(prefix + ".bin");
  write(Format::llmc, 128'256);
  EXPECT_EQ(contents(prefix + ".bin"),
            llmc_header(20240801, 7, 5) + array_of<std::uint32_t>({1, 2, 3, 4, 5}));
}

TEST_F(Writer, NanogptIsU16AlwaysAndRefusesMore) {
  write(Format::nanogpt, 65'536);
  EXPECT_EQ(contents(prefix + ".bin"), array_of<std::uint16_t>({1, 2, 3, 4, 5}));
  EXPECT_THAT(usage_error([&] {
                TokenWriter{prefix + "2", Format::nanogpt, 65'537};
              }),
              AllOf(HasSubstr("65537"), HasSubstr("megatron")));
  EXPECT_THAT(files_in(folder), testing::ElementsAre("out.bin"));
}

TEST_F(Writer, ManyDocumentsGoThroughItsBuffers) {
  std::vector<std::int32_t> lengths;
  std::vector<std::uint16_t> tokens;
  TokenWriter writer{prefix, Format::megatron, 1'000};
  for (std::int32_t i = 0; i < 200'000; ++i) {
    std::vector<std::int32_t> const document(static_cast<std::size_t>(i % 7 + 1), i % 1'000);
    writer.write(document);
    writer.end_document();
    lengths.push_back(i % 7 + 1);
    tokens.insert(tokens.end(), document.begin(), document.end());
  }
  writer.finish();
  writer.keep();
  name_token_files(prefix, Format::megatron, false);
  EXPECT_TRUE(contents(prefix + ".idx") == Index{lengths}.bytes());
  EXPECT_TRUE(contents(prefix + ".bin") == array_of(tokens));
}

TEST_F(Writer, UnlessItIsKeptNothingIsLeft) {
  {
    TokenWriter writer{prefix, Format::megatron, 256};
    writer.write(std::vector{1, 2});
    writer.end_document();
    writer.save();
    EXPECT_THAT(files_in(folder), testing::ElementsAre("out.bin.part", "out.idx.part"));
  }
  EXPECT_THAT(files_in(folder), testing::IsEmpty());
  EXPECT_THAT(data_error([&] {
                TokenWriter{prefix, Format::llmc, 256}.finish();
              }),
              HasSubstr("no token"));
  EXPECT_THAT(files_in(folder), testing::IsEmpty());
}

TEST_F(Writer, OverwritesNothing) {
  for (std::string const name : {"out.bin", "out.idx", "out.bin.part", "out.idx.part"}) {
    auto const path = folder.write(name, "precious");
    EXPECT_THAT(usage_error([&] {
                  TokenWriter{prefix, Format::megatron, 256};
                }),
                HasSubstr(path + " is there already"));
    EXPECT_EQ(contents(path), "precious");
    EXPECT_THAT(files_in(folder), testing::ElementsAre(name));
    fs::remove(path);
  }
}

TEST_F(Writer, WhatCameMeanwhileIsNotOverwrittenEither) {
  TokenWriter writer{prefix, Format::nanogpt, 256};
  writer.write(std::vector{1});
  writer.finish();
  writer.keep();
  auto const path = folder.write("out.bin", "precious");
  EXPECT_THAT(usage_error([&] { name_token_files(prefix, Format::nanogpt, false); }),
              HasSubstr("meanwhile"));
  EXPECT_EQ(contents(path), "precious");
  fs::remove(path);
  EXPECT_THAT(data_error([&] { name_token_files(prefix, Format::megatron, false); }),
              HasSubstr("out.idx.part is there"));
  for (int i = 0; i < 2; ++i) {
    name_token_files(prefix, Format::nanogpt, false);
    EXPECT_EQ(contents(path), array_of<std::uint16_t>({1}));
  }
}

/// Writes some documents with a mask from `begun` on: a save behind each, and more that is not
/// saved in the end.
Written write_some(std::string const& prefix, Format format, std::int64_t vocab,
                   std::optional<Written> begun, int documents) {
  TokenWriter writer{prefix, format, vocab, true, begun};
  auto const first = begun ? begun->documents : 0;
  auto const write = [&](std::int64_t i) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(1 + i % 5), static_cast<int>(i));
    std::vector<std::uint8_t> mask(tokens.size());
    mask.back() = static_cast<std::uint8_t>(i % 2);
    writer.write(tokens, mask);
  };
  Written saved{};
  for (auto i = first; i < first + documents; ++i) {
    write(i);
    writer.end_document();
    saved = writer.save();
  }
  if (saved.documents < 40) {
    write(99);
    writer.end_document();
    write(98);
  } else {
    writer.finish();
  }
  writer.keep();
  return saved;
}

TEST_F(Writer, GoesOnFromWhatWasSaved) {
  for (Format const format : {Format::megatron, Format::llmc, Format::nanogpt}) {
    for (std::int64_t const vocab : {1'000, 70'000}) {
      if (vocab > 65'536 && format == Format::nanogpt) {
        continue;
      }
      auto const straight = fmt::format("{}{}{}", prefix, name_of(format), vocab);
      auto const pieces = straight + "-pieces";
      write_some(straight, format, vocab, std::nullopt, 40);
      std::optional<Written> begun;
      for (int const documents : {7, 1, 32}) {
        begun = write_some(pieces, format, vocab, begun, documents);
      }
      for (std::string const ending : {".bin", ".mask", ".idx"}) {
        if (ending != ".idx" || format == Format::megatron) {
          EXPECT_TRUE(contents(straight + ending + ".part") == contents(pieces + ending + ".part"))
              << pieces << ending;
        }
      }
    }
  }
}

TEST_F(Writer, GoesOnBehindMoreTokensThanAreReadAgainAtATime) {
  std::vector<std::int32_t> tokens(70'000);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<std::uint8_t> const mask(tokens.size(), 1);
  for (bool const in_pieces : {false, true}) {
    std::optional<TokenWriter> writer{std::in_place, prefix + (in_pieces ? "2" : "1"), Format::llmc,
                                      70'000, true};
    writer->write(tokens, mask);
    writer->end_document();
    Written const saved = writer->save();
    writer->keep();
    if (in_pieces) {
      writer.reset();
      writer.emplace(prefix + "2", Format::llmc, 70'000, true, saved);
    }
    writer->finish();
    writer->keep();
  }
  EXPECT_TRUE(contents(prefix + "1.mask.part") == contents(prefix + "2.mask.part"));
}

TEST_F(Writer, EmptiesFilesOfAPackThatSavedNothing) {
  folder.write("out.bin.part", "half");
  TokenWriter writer{prefix, Format::nanogpt, 256, false, Written{}};
  writer.write(std::vector{7});
  writer.finish();
  EXPECT_EQ(contents(prefix + ".bin.part"), array_of<std::uint16_t>({7}));
}

TEST_F(Writer, RefusesAFileThatLostWhatWasSaved) {
  folder.write("out.bin.part", "123");
  EXPECT_THAT(
      data_error([&] {
        TokenWriter{prefix, Format::nanogpt, 256, false, Written{.tokens = 2, .documents = 1}};
      }),
      AllOf(HasSubstr("out.bin.part has 3 bytes"), HasSubstr("wrote 4")));
  EXPECT_EQ(contents(prefix + ".bin.part"), "123");
  EXPECT_THROW((TokenWriter{prefix + "2", Format::nanogpt, 256, false,
                            Written{.tokens = 2, .documents = 1}}),
               IoError);
}

TEST_F(Writer, RefusesTokensOutsideTheVocabularyAndFormatsItDoesNotWrite) {
  TokenWriter writer{prefix, Format::nanogpt, 256};
  EXPECT_THROW(writer.write(std::vector{256}), PreconditionError);
  EXPECT_THROW(writer.write(std::vector{-1}), PreconditionError);
  EXPECT_THROW((TokenWriter{prefix + "2", Format::text, 256}), PreconditionError);
  EXPECT_THROW((TokenWriter{"/nowhere/out", Format::nanogpt, 256}), IoError);
}

}  // namespace
}  // namespace offstage::data
