#include "data/token_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <numeric>
#include <thread>

#include "base/stopwatch.hpp"
#include "base/watch.hpp"
#include "formats.hpp"
#include "temporary_directory.hpp"

namespace offstage::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;

std::unique_ptr<TokenFile> open(std::string const& path, std::int64_t vocab = 256,
                                Format format = Format::automatic) {
  return open_tokens({.path = path, .key = "data.train", .format = format, .vocab = vocab});
}

std::vector<std::int32_t> all_tokens(TokenFile const& file) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(file.tokens()));
  file.read(0, tokens);
  return tokens;
}

TEST(TokenFile, TextsBytesAreTokens) {
  TemporaryDirectory const folder;
  auto const file = open(folder.write("a.txt", "ab\n\xFF"));
  EXPECT_EQ(file->format(), Format::text);
  EXPECT_EQ(file->documents(), std::nullopt);
  ASSERT_EQ(file->tokens(), 4);
  std::vector<std::int32_t> tokens(3);
  file->read(1, tokens);
  EXPECT_THAT(tokens, ElementsAre('b', '\n', 255));
  file->read(4, {});
  EXPECT_THROW(file->read(2, tokens), PreconditionError);
  EXPECT_THROW(file->read(-1, tokens), PreconditionError);
}

TEST(TokenFile, AByteThatIsNoTokenIsFoundEvenIfItCameDuringTheRun) {
  TemporaryDirectory const folder;
  auto const path = folder.write("a.txt", "abcdefgh");
  auto const file = open(path, 128);
  folder.write("a.txt", "abc\xE9\x66gh!");
  std::vector<std::int32_t> tokens(3);
  file->read(0, tokens);
  EXPECT_THAT(data_error([&] { file->read(2, tokens); }), HasSubstr("byte 233 at offset 3"));
}

TEST(TokenFile, NamesTheFirstByteBeyondTheVocabularyWhereverItStands) {
  TemporaryDirectory const folder;
  auto const path = folder.write("a.txt", "abc\xC3\xA9");
  EXPECT_THAT(data_error([&] { (void)open(path, 128); }),
              AllOf(HasSubstr("byte 195 at offset 3"), HasSubstr("model.vocab=128"),
                    HasSubstr("data.train=" + path)));
  EXPECT_EQ(open(path, 196)->tokens(), 5);
  std::string text(3'000'000, 'a');
  text.back() = '\xFF';
  folder.write("a.txt", text);
  EXPECT_THAT(data_error([&] { (void)open(path, 128); }), HasSubstr("byte 255 at offset 2999999"));
}

TEST(TokenFile, WhatBecomesShorterDuringTheRunIsADataError) {
  TemporaryDirectory const folder;
  auto const path = folder.write("a.bin", std::string(10'000, '\1'));
  auto const file = open(path, 65'536);
  std::filesystem::resize_file(path, 5'000);
  std::vector<std::int32_t> tokens(100);
  file->read(2'400, tokens);
  EXPECT_THAT(data_error([&] { file->read(4'000, tokens); }),
              AllOf(HasSubstr("data.train=" + path), HasSubstr("had 10000 bytes"),
                    HasSubstr("ends before byte 8000")));
}

TEST(TokenFile, RefusesWhatIsMissingEmptyOrNoFile) {
  TemporaryDirectory const folder;
  EXPECT_THAT(data_error([] { (void)open("/nowhere/a.txt"); }),
              AllOf(HasSubstr("data.train=/nowhere/a.txt"), HasSubstr("No such file")));
  EXPECT_THAT(data_error([&] { (void)open(folder.write("a.txt", "")); }), HasSubstr("empty"));
  EXPECT_THAT(data_error([&] { (void)open(folder.path().string()); }),
              HasSubstr("not a regular file but a directory; name the files in it"));
  auto const pipe = (folder.path() / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(data_error([&] { (void)open(pipe); }), HasSubstr("not a regular file"));
}

TEST(TokenFile, MegatronTokensOfEveryTypeAreRead) {
  TemporaryDirectory const folder;
  auto const check = [&]<class T>(T, int code) {
    Index index{{3, 2}, sizeof(T)};
    index.type = static_cast<std::uint8_t>(code);
    folder.write("a.idx", index.bytes());
    folder.write("a.bin", array_of<T>({1, 2, 127, 0, 5}));
    auto const file = open((folder.path() / "a").string(), 128);
    EXPECT_EQ(file->format(), Format::megatron);
    EXPECT_EQ(size_of(file->type()), static_cast<std::int64_t>(sizeof(T)));
    EXPECT_THAT(all_tokens(*file), ElementsAre(1, 2, 127, 0, 5)) << code;
    EXPECT_THAT(file->documents(), Optional(ElementsAre(0, 3)));
    std::vector<std::int32_t> middle(2);
    file->read(2, middle);
    EXPECT_THAT(middle, ElementsAre(127, 0));
  };
  check(std::uint8_t{}, 1);
  check(std::int8_t{}, 2);
  check(std::int16_t{}, 3);
  check(std::int32_t{}, 4);
  check(std::int64_t{}, 5);
  check(std::uint16_t{}, 8);
}

TEST(TokenFile, NamesATokenThatIsNegativeOrBeyondTheVocabularyWithItsPosition) {
  TemporaryDirectory const folder;
  Index index{{3}, 8};
  index.type = 5;
  folder.write("a.idx", index.bytes());
  for (std::int64_t const bad : {std::int64_t{-1}, std::int64_t{50'257}, std::int64_t{1} << 32,
                                 std::int64_t{-1} << 63, (std::int64_t{1} << 32) + 7}) {
    auto const path = folder.write("a.bin", array_of<std::int64_t>({1, 50'256, bad}));
    auto const file = open(path, 50'257);
    std::vector<std::int32_t> tokens(2);
    file->read(0, tokens);
    EXPECT_THAT(data_error([&] { file->read(1, tokens); }),
                AllOf(HasSubstr("data.train=" + path),
                      HasSubstr("token " + std::to_string(bad) + " at position 2"),
                      HasSubstr("model.vocab=50257")));
  }
}

TEST(TokenFile, MegatronIsFoundByAnyOfItsNames) {
  TemporaryDirectory const folder;
  folder.write("a.idx", Index{{2}}.bytes());
  auto const data = folder.write("a.bin", array_of<std::uint16_t>({7, 8}));
  auto const prefix = (folder.path() / "a").string();
  for (std::string const& name : {prefix, prefix + ".bin", prefix + ".idx"}) {
    EXPECT_EQ(open(name)->format(), Format::megatron);
    EXPECT_EQ(open(name)->path(), data);
  }
  EXPECT_EQ(open(data, 65'536, Format::nanogpt)->format(), Format::nanogpt);
  // What a path names itself comes before what stands beside it.
  EXPECT_EQ(open(folder.write("a", "text"))->format(), Format::text);
  std::filesystem::remove(data);
  EXPECT_THAT(data_error([&] { (void)open(prefix + ".idx"); }),
              AllOf(HasSubstr(data), HasSubstr("No such file")));
}

TEST(TokenFile, MegatronWithoutAnIndexOrWithABadOneNamesIt) {
  TemporaryDirectory const folder;
  auto const data = folder.write("a.bin", array_of<std::uint16_t>({7, 8}));
  auto const index = (folder.path() / "a.idx").string();
  EXPECT_THAT(data_error([&] { (void)open(data, 256, Format::megatron); }),
              AllOf(HasSubstr("data.train=" + index), HasSubstr("No such file")));
  auto const prefix = (folder.path() / "a").string();
  EXPECT_THAT(data_error([&] { (void)open(prefix); }), HasSubstr("put its .idx beside it"));
  folder.write("a.idx", Index{{2}}.bytes().substr(0, 50));
  EXPECT_THAT(data_error([&] { (void)open(prefix, 256, Format::text); }),
              HasSubstr("which are Megatron data and no text; let the format be auto"));
  EXPECT_THAT(data_error([&] { (void)open(data); }),
              AllOf(HasSubstr("data.train=" + index), HasSubstr("50 bytes do not hold")));
}

TEST(TokenFile, AnIndexThatIsChangedUnderARunIsRefused) {
  TemporaryDirectory const folder;
  folder.write("a.idx", Index{{2}}.bytes());
  auto const file = open(folder.write("a.bin", array_of<std::uint16_t>({7, 8})));
  Index other{{2, 2}, 1};
  other.type = 1;
  folder.write("a.idx", other.bytes());
  EXPECT_THAT(data_error([&] { (void)file->documents(); }), HasSubstr("a.idx"));
}

TEST(TokenFile, LlmcTokensOfBothTypesAreRead) {
  TemporaryDirectory const folder;
  auto const narrow = open(
      folder.write("a.bin", llmc_header(20240520, 1, 3) + array_of<std::uint16_t>({1, 65'535, 3})),
      65'536);
  EXPECT_EQ(narrow->format(), Format::llmc);
  EXPECT_EQ(narrow->type(), TokenType::u16);
  EXPECT_THAT(all_tokens(*narrow), ElementsAre(1, 65'535, 3));
  auto const path = folder.write(
      "any.name", llmc_header(20240801, 7, 3) + array_of<std::uint32_t>({1, 128'000, 0xFFFFFFFF}));
  auto const wide = open(path, 128'256);
  EXPECT_EQ(wide->type(), TokenType::u32);
  std::vector<std::int32_t> tokens(2);
  wide->read(0, tokens);
  EXPECT_THAT(tokens, ElementsAre(1, 128'000));
  EXPECT_THAT(data_error([&] { wide->read(1, tokens); }),
              HasSubstr("token 4294967295 at position 2"));
}

TEST(TokenFile, RefusesLlmcHeadersThatDoNotFit) {
  TemporaryDirectory const folder;
  std::string const tokens = array_of<std::uint16_t>({1, 2, 3});
  auto const refusal = [&](std::string const& bytes) {
    auto const path = folder.write("a.bin", bytes);
    return data_error([&] { (void)open(path, 65'536, Format::llmc); });
  };
  EXPECT_THAT(refusal(llmc_header(20240521, 1, 3) + tokens),
              AllOf(HasSubstr("magic 20240521"), HasSubstr("20240520"), HasSubstr("a.bin")));
  EXPECT_THAT(refusal(llmc_header(20240520, 7, 3) + tokens),
              AllOf(HasSubstr("version 7"), HasSubstr("version 1")));
  EXPECT_THAT(refusal(llmc_header(20240801, 1, 3) + tokens), HasSubstr("version 7 is for"));
  EXPECT_THAT(refusal(llmc_header(20240520, 1, 4) + tokens),
              AllOf(HasSubstr("4 tokens of type u16"), HasSubstr("1032 bytes"), HasSubstr("1030")));
  EXPECT_THAT(refusal(llmc_header(20240520, 1, 2) + tokens), HasSubstr("2 tokens"));
  EXPECT_THAT(refusal(llmc_header(20240520, 1, 0)), HasSubstr("counts 0 tokens"));
  EXPECT_THAT(refusal(llmc_header(20240520, 1, -5) + tokens), HasSubstr("counts -5 tokens"));
  EXPECT_THAT(refusal(llmc_header(20240520, 1, 0x7FFFFFFF) + tokens),
              HasSubstr("4294968318 bytes"));
  std::string const whole = llmc_header(20240520, 1, 3) + tokens;
  for (std::size_t size : {1U, 3U, 4U, 11U, 1'023U, 1'024U, 1'029U}) {
    EXPECT_THAT(refusal(whole.substr(0, size)), HasSubstr("data.train=")) << size;
  }
}

TEST(TokenFile, NanogptIsRawU16) {
  TemporaryDirectory const folder;
  auto const file = open(folder.write("a.bin", array_of<std::uint16_t>({50'256, 0, 7})), 50'257);
  EXPECT_EQ(file->format(), Format::nanogpt);
  EXPECT_THAT(all_tokens(*file), ElementsAre(50'256, 0, 7));
  EXPECT_THAT(data_error([&] { (void)open(folder.write("b.bin", "abc")); }),
              HasSubstr("3 bytes are no whole number of u16"));
}

TEST(TokenFile, IsReadThroughInOrderPieceByPiece) {
  TemporaryDirectory const folder;
  std::vector<std::uint16_t> tokens(150'001);
  std::iota(tokens.begin(), tokens.end(), std::uint16_t{0});
  auto const file = open(folder.write("a.bin", array_of(tokens)), 65'536);
  std::int64_t seen{};
  for_each_piece(*file, [&](std::int64_t first, std::span<std::int32_t const> piece) {
    ASSERT_EQ(first, seen);
    for (auto const token : piece) {
      ASSERT_EQ(token, tokens[static_cast<std::size_t>(seen++)]);
    }
  });
  EXPECT_EQ(seen, 150'001);
}

TEST(TokenFile, ReadingAllOfItIsProgress) {
  TemporaryDirectory const folder;
  auto const file = open(folder.write("a.txt", "a long text"));
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  Stopwatch const watch;
  (void)documents_by_separator(*file, ' ');
  Seconds const idle = since_progress();  // first: time goes on in between
  EXPECT_LE(idle, watch.elapsed());
}

TEST(TokenFile, ASeparatorEndsItsDocumentAndBelongsToIt) {
  TemporaryDirectory const folder;
  auto const begins = [&](std::string_view text) {
    return documents_by_separator(*open(folder.write("a.txt", text)), '|');
  };
  EXPECT_THAT(begins("ab|c||de"), ElementsAre(0, 3, 5, 6));
  EXPECT_THAT(begins("ab|"), ElementsAre(0));
  EXPECT_THAT(begins("|ab"), ElementsAre(0, 1));
  EXPECT_THAT(begins("ab"), ElementsAre(0));
}

TEST(TokenFile, WhatIsNoTokensIsRefusedByNameUnlessAFormatIsGiven) {
  TemporaryDirectory const folder;
  using namespace std::literals;
  std::string const rest(64, 'x');
  for (auto const& [bytes, name] : {std::pair{"\x93NUMPY\x01\0"s, "NumPy"},
                                    {"\x1f\x8b\x08\0"s, "gzip"},
                                    {"\x28\xb5\x2f\xfd"s, "zstd"},
                                    {"\xfd\x37zXZ\0"s, "xz"},
                                    {"BZh91AY"s, "bzip2"},
                                    {"PK\x03\x04"s, "zip"},
                                    {"PAR1"s, "Parquet"},
                                    {"ARROW1\0\0"s, "Arrow"},
                                    {"\x89HDF\r\n\x1a\n"s, "HDF5"},
                                    {"{\"text\": \"a\"}\n"s, "JSON"},
                                    {"\xEF\xBB\xBF \n[ {"s, "JSON"},
                                    {"[\"a\""s, "JSON"}}) {
    for (char const* const path : {"a.txt", "a.bin", "a"}) {
      auto const file = folder.write(path, bytes + rest + (bytes.size() % 2 != 0 ? "x" : ""));
      EXPECT_THAT(
          data_error([&] { (void)open(file, 65'536); }),
          AllOf(HasSubstr("data.train=" + file), HasSubstr(name), HasSubstr("data.format=text")));
      EXPECT_EQ(open(file, 256, Format::text)->format(), Format::text);
      EXPECT_EQ(open(file, 65'536, Format::nanogpt)->format(), Format::nanogpt);
    }
  }
}

TEST(TokenFile, BinaryDataIsNoText) {
  TemporaryDirectory const folder;
  using namespace std::literals;
  for (auto const& [bytes, name] : {std::pair{"\177ELF\2\1\1\0"s, "binary data (byte 7 is 0)"},
                                    {"\xFF\xFEh\0i\0"s, "UTF-16"},
                                    {"h\0i\0"s, "binary data"}}) {
    auto const file = folder.write("a.txt", bytes);
    EXPECT_THAT(
        data_error([&] { (void)open(file, 256); }),
        AllOf(HasSubstr("data.train=" + file), HasSubstr(name), HasSubstr("data.format=text")));
    EXPECT_EQ(open(file, 256, Format::text)->format(), Format::text);
    EXPECT_EQ(open(folder.write("a.bin", bytes), 65'536)->format(), Format::nanogpt);
  }
}

TEST(TokenFile, TextsThatBeginAlmostLikeThatAreTexts) {
  TemporaryDirectory const folder;
  for (char const* const text :
       {"{ int x; }", "[1] A note", "(\"a\")", "PAR 1", "B", "\x1f\x8b", "[", "{}"}) {
    EXPECT_EQ(open(folder.write("a.txt", text))->format(), Format::text) << text;
  }
}

TEST(TokenFile, WithoutAHeaderNoVocabularyIsLargerThanU16Holds) {
  TemporaryDirectory const folder;
  auto const path = folder.write("a.bin", array_of<std::uint16_t>({1, 65'535}));
  EXPECT_EQ(open(path, 65'536)->format(), Format::nanogpt);
  EXPECT_THAT(data_error([&] { (void)open(path, 65'537); }),
              AllOf(HasSubstr("data.train=" + path), HasSubstr("model.vocab=65537"),
                    HasSubstr("2 bytes"), HasSubstr("data pack --format=megatron")));
  EXPECT_EQ(open(path, 65'537, Format::nanogpt)->format(), Format::nanogpt);
  EXPECT_EQ(
      open_tokens({.path = path, .key = {}, .vocab = 1 << 30, .vocab_is_known = false})->format(),
      Format::nanogpt);
}

TEST(TokenFile, ReadsRawU32WhereItIsTold) {
  TemporaryDirectory const folder;
  std::vector<std::uint32_t> const tokens{1, 128'000, 70'000, 0};
  std::string const bytes{reinterpret_cast<char const*>(tokens.data()), 4 * tokens.size()};
  for (char const* name : {"a.bin", "a.npy"}) {
    auto const path = folder.write(name, bytes);
    auto const file = open(path, 128'256, Format::u32);
    EXPECT_EQ(file->tokens(), 4);
    EXPECT_EQ(file->doubt(), "");
    std::vector<std::int32_t> read(4);
    file->read(0, read);
    EXPECT_EQ(read, (std::vector<std::int32_t>{1, 128'000, 70'000, 0}));
    EXPECT_EQ(documents_by_separator(*file, 70'000), (std::vector<std::int64_t>{0, 3}));
  }
  EXPECT_THAT(data_error([&] { (void)open(folder.write("b.bin", bytes), 128'256); }),
              HasSubstr("data.format=u32"));
  EXPECT_THAT(
      data_error([&] { (void)open(folder.write("c.bin", "abcdef"), 128'256, Format::u32); }),
      HasSubstr("6 bytes are no whole number of u32 tokens"));
}

TEST(TokenFile, ANameWithoutItsEndingOrItsIndexSaysWhatIsThere) {
  TemporaryDirectory const folder;
  auto const path = folder.write("a.bin", array_of<std::uint16_t>({1, 2}));
  EXPECT_THAT(data_error([&] { (void)open(path.substr(0, path.size() - 4), 10); }),
              AllOf(HasSubstr("data.train="), HasSubstr("name " + path + " if it is nanoGPT's")));
}

TEST(TokenFile, WiderNumbersThanU16AreCaughtOrDoubted) {
  TemporaryDirectory const folder;
  std::vector<std::int64_t> values(1000);
  std::iota(values.begin(), values.end(), 0);
  auto const as = [&]<class T>(T, std::string const& name) {
    std::vector<T> const numbers(values.begin(), values.end());
    return folder.write(name, array_of(numbers));
  };
  auto const wide = as(std::int64_t{}, "wide.bin");
  EXPECT_THAT(data_error([&] { (void)open(wide, 65'536); }),
              AllOf(HasSubstr("int64"), HasSubstr("'<u2'")));
  EXPECT_THAT(open(wide, 65'536, Format::nanogpt)->doubt(),
              HasSubstr("three of four of its u16 are 0"));
  auto const middle = as(std::int32_t{}, "middle.bin");
  EXPECT_THAT(data_error([&] { (void)open(middle, 65'536); }),
              AllOf(HasSubstr("int32"), HasSubstr("'<u2'"), HasSubstr("PREFIX.idx")));
  EXPECT_THAT(open(middle, 65'536, Format::nanogpt)->doubt(),
              HasSubstr("every second of its u16 are 0"));
  EXPECT_EQ(open(as(std::uint16_t{}, "right.bin"), 65'536)->doubt(), "");
  // In a larger file only the beginning may look so.
  values.assign(200'000, 7);
  auto numbers = std::vector<std::uint16_t>(400'000, 7);
  for (std::size_t i = 1; i < 40'000; i += 2) {
    numbers[i] = 0;
  }
  EXPECT_EQ(open(folder.write("part.bin", array_of(numbers)), 65'536)->doubt(), "");
  EXPECT_EQ(open(folder.write("zeros.bin", std::string(4096, '\0')), 65'536)->doubt(), "");
  EXPECT_EQ(open(folder.write("short.bin", std::string("a\0\0\0", 4)), 65'536)->doubt(), "");
}

TEST(TokenFile, DocumentsAreCountedWhereTheFormatTellsThem) {
  TemporaryDirectory const folder;
  folder.write("a.idx", Index{{3, 0, 2}}.bytes());
  folder.write("a.bin", array_of<std::uint16_t>({1, 2, 3, 4, 5}));
  EXPECT_EQ(open((folder.path() / "a").string())->document_count(), 2);
  EXPECT_EQ(open(folder.write("a.txt", "abc"))->document_count(), std::nullopt);
}

}  // namespace
}  // namespace offstage::data
