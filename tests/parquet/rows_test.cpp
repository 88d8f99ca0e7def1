#include "parquet/rows.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.hpp"
#include "temporary_directory.hpp"

namespace offstage::parquet {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

std::string path_of(std::string const& name) {
  return std::string{OFFSTAGE_TEST_TABLES} + "/" + name;
}

std::string contents_of(std::string const& name) {
  std::ifstream file{path_of(name), std::ios::binary};
  std::ostringstream contents;
  contents << file.rdbuf();
  return contents.str();
}

std::string read_all(data::ByteStream& stream, std::size_t piece = 1000) {
  std::string all;
  std::string part(piece, '\0');
  while (auto const count = stream.read(std::as_writable_bytes(std::span{part}))) {
    all.append(part, 0, count);
  }
  return all;
}

std::vector<json> lines_of(std::string const& text) {
  std::vector<json> lines;
  std::istringstream in{text};
  for (std::string line; std::getline(in, line);) {
    lines.push_back(json::parse(line));
  }
  return lines;
}

std::string refusal(std::string const& path, std::optional<std::string> const& column = {}) {
  try {
    static_cast<void>(read_all(*open_rows(path, "--from", column)));
  } catch (DataError const& error) {
    return error.what();
  }
  return "";
}

class Tables : public testing::TestWithParam<char const*> {};

TEST_P(Tables, HaveTheRowsThatPyarrowWrote) {
  std::string const name = GetParam();
  auto const stream = open_rows(path_of(name + ".parquet"), "--from", std::nullopt);
  auto const rows = lines_of(read_all(*stream));
  auto const wanted = lines_of(contents_of(name.substr(0, name.find('-')) + ".jsonl"));
  ASSERT_EQ(rows.size(), wanted.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i], wanted[i]) << "row " << i + 1;
  }
  EXPECT_EQ(stream->done(), stream->file().size());
}

INSTANTIATE_TEST_SUITE_P(Parquet, Tables,
                         testing::Values("flat-none", "flat-snappy", "flat-gzip", "flat-zstd",
                                         "flat-second", "flat-differences", "chats-1", "chats-2",
                                         "empty", "split", "nulls", "integers", "sums-1", "sums-2"),
                         [](auto const& which) {
                           std::string name = which.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(Rows, HaveOneColumnWhereItIsNamed) {
  auto const rows =
      lines_of(read_all(*open_rows(path_of("flat-second.parquet"), "--from", "text"), 1));
  auto const wanted = lines_of(contents_of("flat.jsonl"));
  ASSERT_EQ(rows.size(), wanted.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i], (json{{"text", wanted[i]["text"]}}));
  }
}

/// Pages as other writers have them, made by hand: levels that are not there in the encoding that
/// parquet-java names for them, no bytes for no values, text by the newer of two marks.
TEST(Rows, AreThoseOfOtherWritersToo) {
  auto const rows = [](std::string const& name) {
    auto const path = std::string{OFFSTAGE_TEST_TABLES} + "/../../fuzz/corpus/parquet/" + name;
    return read_all(*open_rows(path, "--from", std::nullopt));
  };
  std::string const both = "{\"text\":\"a\"}\n{\"text\":\"b\"}\n";
  EXPECT_EQ(rows("spark.parquet"), both);
  EXPECT_EQ(rows("bitpacked.parquet"), both);
  EXPECT_EQ(rows("json.parquet"), "{\"text\":\"{\\\"a\\\":1}\"}\n");
  EXPECT_EQ(rows("v2empty1.parquet"), "{\"text\":null}\n{\"text\":null}\n");
  EXPECT_EQ(rows("v2empty2.parquet"), rows("v2empty1.parquet"));
}

TEST(Rows, AreRefusedWithWhatIsWrong) {
  EXPECT_THAT(
      refusal(path_of("chats-1.parquet"), "text"),
      AllOf(HasSubstr("--from=" + path_of("chats-1.parquet") + ": has no column 'text'"),
            HasSubstr("its columns are messages, grid, meta, tags, image, day, price, when; "
                      "name one by --field")));
  EXPECT_THAT(refusal(path_of("lz4.parquet")),
              HasSubstr("is compressed by LZ4 in column 'text', which is not read; write it anew"));
}

TEST(Rows, AreRefusedWhereTheFileIsCutOrDamaged) {
  TemporaryDirectory const folder;
  std::string const whole = contents_of("flat-snappy.parquet");
  auto const refused = [&](std::string const& bytes) {
    return refusal(folder.write("table.parquet", bytes));
  };
  EXPECT_THAT(refused(whole.substr(0, whole.size() - 100)), HasSubstr("it was not copied whole"));
  EXPECT_THAT(refused("PAR1"), HasSubstr("it was not copied whole"));
  EXPECT_THAT(refused(whole.substr(0, whole.size() - 1) + "E"), HasSubstr("is encrypted"));
  // A page of the first column.
  std::string damaged = whole;
  std::fill_n(damaged.begin() + 200, 40, '\xFF');
  EXPECT_THAT(refused(damaged), HasSubstr("is damaged in column 'text', row 1: "));
}

// Whatever byte changes, a table is read or refused.
TEST(Rows, OfATableWithAnyByteChangedAreReadOrRefused) {
  TemporaryDirectory const folder;
  for (char const* const name : {"chats-1.parquet", "flat-differences.parquet"}) {
    std::string const whole = contents_of(name);
    int refused = 0;
    for (std::size_t at = 0; at < whole.size(); at += 7) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
      refused += refusal(folder.write("table.parquet", damaged)).empty() ? 0 : 1;
    }
    EXPECT_GT(refused, 100) << name;
  }
}

TEST(Rows, OfPagesWithChecksumsAreNeverOthersThanWereWritten) {
  TemporaryDirectory const folder;
  for (char const* const name : {"sums-1.parquet", "sums-2.parquet"}) {
    std::string const whole = contents_of(name);
    std::string const rows = read_all(*open_rows(path_of(name), "--from", std::nullopt));
    std::uint32_t footer = 0;
    std::memcpy(&footer, whole.data() + whole.size() - 8, sizeof footer);
    int by_checksum = 0;
    for (std::size_t at = 4; at < whole.size() - 8 - footer; ++at) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
      auto const path = folder.write("table.parquet", damaged);
      auto const why = refusal(path);
      by_checksum += why.find("the checksum that its header says") != std::string::npos ? 1 : 0;
      if (why.empty()) {
        EXPECT_EQ(read_all(*open_rows(path, "--from", std::nullopt)), rows) << name << at;
      }
    }
    EXPECT_GT(by_checksum, static_cast<int>(whole.size()) / 2) << name;
  }
}

TEST(Rows, AreThoseOfTablesAlone) {
  EXPECT_TRUE(is_table(path_of("empty.parquet"), "--from"));
  EXPECT_FALSE(is_table(path_of("chats.jsonl"), "--from"));
  TemporaryDirectory const folder;
  EXPECT_FALSE(is_table(folder.write("short", "PA"), "--from"));
}

}  // namespace
}  // namespace offstage::parquet
