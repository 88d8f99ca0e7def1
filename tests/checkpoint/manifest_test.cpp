#include "checkpoint/manifest.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.hpp"
#include "checkpoint/sample.hpp"

namespace offstage::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Manifest sample() {
  Manifest manifest;
  manifest.format = format_of_rank_files;
  manifest.rank = 1;
  manifest.ranks = 2;
  manifest.file = "rank-0001.h5";
  manifest.file_bytes = 200'000;
  manifest.subgroups = {
      {4096, 8192, 0xABCU, {{0, {2, 1}, 0}, {1, {0, 1}, 4096}}},
      {4096 + 98304, 4096, 0xDEFU, {{2, {5, 1}, 0}}},
  };
  return manifest;
}

std::string problem_with(std::string const& text) {
  return message_of<DataError>(
      [&] { (void)parse_manifest(text, adamw_layout(), "dir/rank-0001.json"); });
}

/// The sample's JSON with one part replaced; the part must be there.
std::string with(std::string const& part, std::string const& replacement) {
  std::string text = to_json(sample());
  auto const at = text.find(part);
  EXPECT_NE(at, std::string::npos) << part;
  return text.replace(at, part.size(), replacement);
}

TEST(Manifest, ReadsBackWhatWasWritten) {
  Manifest const manifest = parse_manifest(to_json(sample()), adamw_layout(), "path");
  EXPECT_EQ(manifest.rank, 1);
  EXPECT_EQ(manifest.ranks, 2);
  EXPECT_EQ(manifest.file, "rank-0001.h5");
  EXPECT_EQ(manifest.file_bytes, 200'000);
  ASSERT_EQ(manifest.subgroups.size(), 2U);
  StoredSubgroup const& first = manifest.subgroups[0];
  EXPECT_EQ(first.offset, 4096);
  EXPECT_EQ(first.elements, 8192);
  EXPECT_EQ(first.checksum, 0xABCU);
  EXPECT_EQ(first.blocks(adamw_layout()), 6);
  ASSERT_EQ(first.pieces.size(), 2U);
  EXPECT_EQ(first.pieces[1].layer, 1);
  EXPECT_EQ(first.pieces[1].chunks.count, 1);
  EXPECT_EQ(first.pieces[1].offset, 4096);
  EXPECT_EQ(manifest.subgroups[1].pieces[0].chunks.first, 5);
}

TEST(Manifest, ReadsBackWhatLiesInAnExtentFile) {
  Manifest written = sample();
  written.subgroups[1].offset = 8192;
  written.subgroups[1].own_file = {"extent-0001-000001.h5", 8192 + 98304 + 7};
  Manifest const manifest = parse_manifest(to_json(written), adamw_layout(), "path");
  EXPECT_FALSE(manifest.subgroups[0].own_file);
  ASSERT_TRUE(manifest.subgroups[1].own_file);
  EXPECT_EQ(manifest.subgroups[1].own_file->name, "extent-0001-000001.h5");
  EXPECT_EQ(manifest.subgroups[1].own_file->bytes, 8192 + 98304 + 7);
  EXPECT_EQ(manifest.place(1), "/");
  EXPECT_EQ(manifest.place(0), "/subgroup/0/");
  EXPECT_EQ(manifest.checksum_name(1), "/checksum/1");
}

TEST(Manifest, ReadsBackWhatLiesInTheFileOfANode) {
  Manifest written = sample();
  written.format = format_of_node_files;
  for (char const* const name : {"node-0000.h5", "node-0001.h5"}) {
    written.file = name;
    Manifest const manifest = parse_manifest(to_json(written), adamw_layout(), "path");
    EXPECT_EQ(manifest.format, format_of_node_files);
    EXPECT_EQ(manifest.file, name);
    EXPECT_EQ(manifest.place(1), "/rank/1/subgroup/1/");
    EXPECT_EQ(manifest.checksum_name(1), "/rank/1/checksum/1");
  }
  for (char const* const name : {"node-0002.h5", "node-1.h5", "node-00000.h5", "node--001.h5",
                                 "node-.h5", "rank-0001.h5", "../node-0000.h5"}) {
    written.file = name;
    EXPECT_THAT(problem_with(to_json(written)), HasSubstr("field file must be a file name"))
        << name;
  }
}

TEST(Manifest, NamesWhatIsWrongWithAnExtentFile) {
  Manifest written = sample();
  written.subgroups[1].own_file = {"extent-0001-000001.h5", 300'001};
  std::string const text = to_json(written);
  auto const problem = [&](std::string const& part, std::string const& replacement) {
    std::string changed = text;
    auto const at = changed.find(part);
    EXPECT_NE(at, std::string::npos) << part;
    return problem_with(changed.replace(at, part.size(), replacement));
  };
  EXPECT_THAT(problem("extent-0001", "../extent"), HasSubstr("subgroups[1].file must be a file"));
  EXPECT_THAT(problem("300001", "110000"), HasSubstr("subgroups[1].elements"));
  EXPECT_THAT(problem("300001", "-1"), HasSubstr("subgroups[1].file_bytes"));
  EXPECT_THAT(problem("\"place\": \"/\"", "\"place\": \"/subgroup/1/\""),
              HasSubstr("subgroups[1].place"));
}

TEST(Manifest, NamesWhatIsWrongWithAnExtentFileOfFormat3) {
  std::string const text = read_text(OFFSTAGE_FORMATS "/format-3/step-000000002/rank-0000.json");
  auto const problem = [&](std::string const& part, std::string const& replacement) {
    std::string changed = text;
    auto const at = changed.find(part);
    EXPECT_NE(at, std::string::npos) << part;
    return problem_with(changed.replace(at, part.size(), replacement));
  };
  EXPECT_EQ(problem_with(text), "no such error");
  EXPECT_THAT(problem("\"dataset_elements\": 24576", "\"dataset_elements\": 24575000000"),
              HasSubstr("dataset_elements"));
  EXPECT_THAT(problem("\"dataset_elements\": 24576", "\"dataset_elements\": 12287"),
              HasSubstr("dataset_elements"));
  EXPECT_THAT(problem("\"/extent\"", "\"/subgroup/0\""), HasSubstr(".dataset must be /extent"));
}

// 8-bit moments: 32768 bytes of a chunk, 36864 of the first two planes of two.
TEST(Manifest, HasRoomForTheStateOfItsLayout) {
  Manifest manifest = sample();
  manifest.file_bytes = 4096 + 98304 + 32768;
  manifest.subgroups[1].elements = 4096;
  std::string const text = to_json(manifest);
  EXPECT_NO_THROW((void)parse_manifest(text, small_layout(), "path"));
  EXPECT_THROW((void)parse_manifest(text, adamw_layout(), "path"), DataError);
  manifest.file_bytes -= 1;
  EXPECT_THROW((void)parse_manifest(to_json(manifest), small_layout(), "path"), DataError);
}

TEST(Manifest, MayHoldNothing) {
  Manifest manifest = sample();
  manifest.subgroups.clear();
  EXPECT_THAT(to_json(manifest), HasSubstr("\"subgroups\": []\n}\n"));
  EXPECT_TRUE(parse_manifest(to_json(manifest), adamw_layout(), "path").subgroups.empty());
}

TEST(Manifest, NamesTheFileAndTheFieldThatIsWrong) {
  struct Case {
    char const* part;
    char const* replacement;
    char const* field;
  };
  for (Case const& c : {
           Case{"\"rank\": 1", "\"rang\": 1", "field rank is missing"},
           Case{"\"rank\": 1", "\"rank\": 2", "field rank must be a whole number from 0 to 1"},
           Case{"\"ranks\": 2", "\"ranks\": -2", "field ranks must"},
           Case{"\"ranks\": 2", "\"ranks\": 1e30", "field ranks must"},
           Case{"\"ranks\": 2", "\"ranks\": 99999999999999999999", "field ranks must"},
           Case{"\"file\": \"rank-0001.h5\"", "\"file\": \"../x\"",
                "field file must be a file name"},
           Case{"\"file\": \"rank-0001.h5\"", "\"file\": 7", "field file must be a text"},
           Case{"\"file_bytes\": 200000", "\"file_bytes\": 18446744073709551615", "file_bytes"},
           Case{"\"file_bytes\": 200000", "\"file_bytes\": 100000",
                "subgroups[0].elements"
                " must"},
           Case{"\"format_version\": 7", "\"format_version\": 9", "field format_version"},
           Case{"\"format_version\": 7", "\"format_version\": 8", "field file must be a file name"},
           Case{"\"place\": \"/subgroup/1/\"", "\"place\": \"/x\"", "subgroups[1].place"},
           Case{"\"offset_bytes\": 4096", "\"offset_bytes\": 4100", "subgroups[0].offset_bytes"},
           Case{"\"offset_bytes\": 4096", "\"offset_bytes\": \"4096\"", "offset_bytes"},
           Case{"\"elements\": 8192", "\"elements\": 8193", "subgroups[0].elements"},
           Case{"\"elements\": 8192", "\"elements\": 9223372036854775807", "elements"},
           Case{"\"elements\": 8192", "\"elements\": 4096", "subgroups[0].pieces[1].chunks"},
           Case{"\"elements\": 8192", "\"elements\": 12288", "subgroups[0].pieces must"},
           Case{"0000000000000abc", "xyz", "subgroups[0].checksum must be 16"},
           Case{"\"layer\": 1", "\"layer\": true", "subgroups[0].pieces[1].layer"},
           Case{"\"layer\": 1", "\"layer\": -1", "pieces[1].layer"},
           Case{"\"first_chunk\": 2", "\"first_chunk\": null", "pieces[0].first_chunk"},
           Case{"\"chunks\": 1", "\"chunks\": 0", "pieces[0].chunks"},
       }) {
    EXPECT_THAT(problem_with(with(c.part, c.replacement)),
                AllOf(HasSubstr("dir/rank-0001.json: "), HasSubstr(c.field), Not(HasSubstr("\n"))))
        << c.replacement;
  }
}

TEST(Manifest, RefusesWhatIsNoObject) {
  for (char const* text : {"", "{", "[]", "7", "null", "\xff\xfe", "{\"subgroups\": 1}"}) {
    EXPECT_THAT(problem_with(text), HasSubstr("dir/rank-0001.json: ")) << text;
  }
  std::string const whole = to_json(sample());
  for (std::size_t length = 0; length + 2 < whole.size(); length += 7) {
    EXPECT_THAT(problem_with(whole.substr(0, length)), HasSubstr("not JSON")) << length;
  }
}

TEST(Manifest, HasNoDepthsNoOtherKeysInMassesAndNoKeyTwice) {
  std::string keys;
  for (int i = 0; i < 20; ++i) {
    keys += "\"" + std::to_string(i) + "\": 0, ";
  }
  std::string const text = to_json(sample());
  for (std::string const& added :
       {std::string{"\"rank\": 1, "}, "\"deep\": " + std::string(2000, '['), keys}) {
    std::string forged = text;
    EXPECT_THAT(problem_with(forged.insert(1, added)),
                AllOf(HasSubstr("dir/rank-0001.json: "), HasSubstr("not JSON as a manifest is")))
        << added;
  }
}

TEST(Manifest, HasSubgroupsWithBytesOfTheirOwn) {
  Manifest manifest = sample();
  for (Bytes const offset : {0, 4096, 4096 + 98304 - 4096}) {
    manifest.subgroups[1].offset = offset;
    EXPECT_THAT(problem_with(to_json(manifest)), HasSubstr("field subgroups must not share bytes"));
  }
  manifest.subgroups[1].offset = 4096 + 98304;
  EXPECT_EQ(problem_with(to_json(manifest)), "no such error");
}

}  // namespace
}  // namespace offstage::checkpoint
