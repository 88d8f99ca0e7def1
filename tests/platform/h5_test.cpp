#include "platform/h5/file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "platform/scratch_directory.hpp"

namespace offstage::h5 {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

template <class Failure, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (Failure const& error) {
    return error.what();
  }
  return "no such error";
}

std::vector<float> counting(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

void write_raw(std::string const& path, Bytes offset, std::span<float const> values) {
  std::fstream file{path, std::ios::in | std::ios::out | std::ios::binary};
  file.seekp(offset);
  file.write(reinterpret_cast<char const*>(values.data()),
             static_cast<std::streamsize>(values.size_bytes()));
}

TEST(H5File, GivesBackNumbersAndTexts) {
  ScratchDirectory const scratch;
  std::string const long_text(100'000, 'x');  // more than an object header holds
  std::vector<std::int64_t> const numbers{1, -2, 3, 4, 5, 6};
  std::vector<std::string> const names{"a", "", "longer"};
  {
    File file = File::create(scratch / "a.h5");
    file.set("count", std::int64_t{-7});
    file.set("seed", ~std::uint64_t{0});
    file.set("rate", 0.1);
    file.set("text", std::string{"one\ntwo"});
    file.set("empty", std::string{});
    file.set("long", long_text);
    file.write<std::int64_t>("/group/deep/numbers", {2, 3}, numbers);
    file.write("/names", names);
    file.close();
  }
  File const file = File::open_read(scratch / "a.h5");
  EXPECT_EQ(file.number<std::int64_t>("count"), -7);
  EXPECT_EQ(file.number<std::uint64_t>("seed"), ~std::uint64_t{0});
  EXPECT_EQ(file.number<double>("rate"), 0.1);
  EXPECT_EQ(file.text("text"), "one\ntwo");
  EXPECT_EQ(file.text("empty"), "");
  EXPECT_EQ(file.text("long"), long_text);
  EXPECT_THAT(file.shape("/group/deep/numbers"), ElementsAre(2, 3));
  EXPECT_EQ(file.read<std::int64_t>("/group/deep/numbers", {2, 3}), numbers);
  EXPECT_EQ(file.read_texts("/names", 3), names);
}

TEST(H5File, ReservesAlignedSpaceThatIsFilledAroundTheLibrary) {
  ScratchDirectory const scratch;
  std::vector<float> const values = counting(3 * 4096);
  Bytes first{};
  Bytes second{};
  {
    File file = File::create(scratch / "a.h5", {48 * KiB, 4096});
    first = file.reserve("/subgroup/0", Type::f32, {3, 4096});
    second = file.reserve("/subgroup/1", Type::f32, {3, 4096});
    file.reserve("/checksum/0", Type::u64, {3, 1});
    file.close();
  }
  EXPECT_EQ(first % 4096, 0);
  EXPECT_EQ(second % 4096, 0);
  EXPECT_NE(first, second);
  auto const size = std::filesystem::file_size(scratch / "a.h5");
  write_raw(scratch / "a.h5", second, values);
  {
    std::vector<std::uint64_t> const checksums{1, 2, 3};
    File file = File::open_read_write(scratch / "a.h5");
    file.fill<std::uint64_t>("/checksum/0", checksums);
    file.close();
  }
  EXPECT_EQ(std::filesystem::file_size(scratch / "a.h5"), size);
  File const file = File::open_read(scratch / "a.h5");
  EXPECT_EQ(file.read<float>("/subgroup/1", {3, 4096}), values);
  EXPECT_THAT(file.read<std::uint64_t>("/checksum/0", {3, 1}), ElementsAre(1, 2, 3));
}

TEST(H5File, ReservesArraysOneRightAfterTheOther) {
  ScratchDirectory const scratch;
  File file = File::create(scratch / "a.h5", {4096, 4096, 8 * KiB});
  Bytes const parameter = file.reserve("/0/parameter", Type::f32, {4096});
  EXPECT_EQ(file.reserve("/0/momentum", Type::bf16, {4096}), parameter + 4 * 4096);
  EXPECT_EQ(file.reserve("/0/variance", Type::u8, {4096}), parameter + 6 * 4096);
  EXPECT_EQ(file.reserve("/0/scale", Type::f32, {1024}), parameter + 7 * 4096);
}

// 1, -2.5 and infinity as bf16, whose bits are the upper halves of an FP32's.
TEST(H5File, ShowsWhatOthersWroteAsBf16AndAsBytes) {
  ScratchDirectory const scratch;
  std::vector<std::uint16_t> const numbers{0x3F80, 0xC020, 0x7F80};
  Bytes offset{};
  {
    File file = File::create(scratch / "a.h5");
    offset = file.reserve("/numbers", Type::bf16, {3});
    file.reserve("/codes", Type::i8, {3});
    file.close();
    File master = File::create(scratch / "master.h5");
    std::vector<Mapping> const parts{{{{0}, {3}}, "a.h5", "/numbers", {3}, {{0}, {3}}},
                                     {{{3}, {1}}, "gone.h5", "/numbers", {1}, {{0}, {1}}}};
    master.map("/numbers", Type::bf16, {4}, parts);
    master.close();
  }
  {
    std::fstream file{scratch / "a.h5", std::ios::in | std::ios::out | std::ios::binary};
    file.seekp(offset);
    file.write(reinterpret_cast<char const*>(numbers.data()), 6);
  }
  auto const shown = File::open_read(scratch / "master.h5").read_mapped("/numbers", {4});
  EXPECT_EQ(shown[0], 1.0F);
  EXPECT_EQ(shown[1], -2.5F);
  EXPECT_TRUE(std::isinf(shown[2]));
  EXPECT_TRUE(std::isnan(shown[3]));
  File const file = File::open_read(scratch / "a.h5");
  EXPECT_EQ(file.offset("/numbers", Type::bf16, {3}), offset);
  EXPECT_THROW((void)file.offset("/numbers", Type::f32, {3}), DataError);
  EXPECT_THROW((void)file.offset("/codes", Type::u8, {3}), DataError);
  EXPECT_GT(file.offset("/codes", Type::i8, {3}), 0);
}

TEST(H5File, ShowsPartsOfOtherFilesAsOneArray) {
  ScratchDirectory const scratch;
  std::vector<float> const values = counting(12);
  {
    File source = File::create(scratch / "source.h5");
    source.write<float>("/data", {2, 6}, values);
    source.close();
    File master = File::create(scratch / "master.h5");
    // A (3, 2) array: its second element on from row 1 of the source, its first is in no part.
    std::vector<Mapping> const parts{
        {{{0, 1}, {1, 1}}, "source.h5", "/data", {2, 6}, {{1, 0}, {1, 1}}},
        {{{1, 0}, {2, 2}}, "source.h5", "/data", {2, 6}, {{1, 1}, {1, 4}}}};
    master.map("/tensor", Type::f32, {3, 2}, parts);
    master.close();
  }
  auto const tensor = File::open_read(scratch / "master.h5").read_mapped("/tensor", {3, 2});
  EXPECT_TRUE(std::isnan(tensor[0]));
  EXPECT_THAT(std::vector(tensor.begin() + 1, tensor.end()), ElementsAre(6, 7, 8, 9, 10));
}

TEST(H5File, ReadsAMissingSourceAsNaN) {
  ScratchDirectory const scratch;
  {
    File master = File::create(scratch / "master.h5");
    std::vector<Mapping> const parts{{{{0}, {2}}, "gone.h5", "/data", {2}, {{0}, {2}}}};
    master.map("/tensor", Type::f32, {2}, parts);
    master.close();
  }
  auto const tensor = File::open_read(scratch / "master.h5").read_mapped("/tensor", {2});
  EXPECT_TRUE(std::isnan(tensor[0]) && std::isnan(tensor[1]));
}

TEST(H5File, RefusesAMappingOutsideItsArray) {
  ScratchDirectory const scratch;
  File master = File::create(scratch / "master.h5");
  std::vector<Mapping> const parts{{{{0}, {3}}, "a.h5", "/data", {3}, {{0}, {3}}}};
  EXPECT_THROW(master.map("/tensor", Type::f32, {2}, parts), PreconditionError);
}

TEST(H5File, NamesTheFileAndTheReasonOnOneLine) {
  ScratchDirectory const scratch;
  std::ofstream{scratch / "garbage.h5"} << "this is no HDF5 file";
  EXPECT_THAT(message_of<DataError>([&] { (void)File::open_read(scratch / "garbage.h5"); }),
              AllOf(HasSubstr("garbage.h5: cannot open the file: "), HasSubstr("signature"),
                    Not(HasSubstr("\n"))));
  EXPECT_THAT(message_of<DataError>([&] { (void)File::open_read(scratch / "missing.h5"); }),
              HasSubstr("missing.h5: cannot open the file: No such file or directory"));
  EXPECT_THAT(message_of<IoError>([&] { (void)File::create(scratch / "no/such/a.h5"); }),
              HasSubstr("no/such/a.h5: cannot create the file: No such file"));
  (void)File::create(scratch / "a.h5");
  EXPECT_THAT(message_of<IoError>([&] { (void)File::create(scratch / "a.h5"); }),
              HasSubstr("exists"));
}

TEST(H5File, ShowsHostileNamesOnOneLine) {
  ScratchDirectory const scratch;
  std::string const name = "a\noffstage: error: forged\x1b[2J.h5";
  EXPECT_THAT(message_of<DataError>([&] { (void)File::open_read(scratch / name); }),
              AllOf(HasSubstr("a\\x0aoffstage: error: forged\\x1b[2J.h5: cannot open the file"),
                    Not(HasSubstr("\x1b"))));
  File const file = File::create(scratch / "a.h5");
  EXPECT_THAT(message_of<IoError>([&] { (void)file.shape(std::string(100'000, 'n')); }).size(),
              ::testing::Le(16384U));
}

TEST(H5File, RefusesAFileThatIsOneByteShort) {
  ScratchDirectory const scratch;
  {
    File file = File::create(scratch / "a.h5");
    file.write<float>("/data", {4096}, counting(4096));
    file.close();
  }
  auto const size = std::filesystem::file_size(scratch / "a.h5");
  std::filesystem::resize_file(scratch / "a.h5", size - 1);
  EXPECT_THAT(message_of<DataError>([&] { (void)File::open_read(scratch / "a.h5"); }),
              HasSubstr("truncated file"));
}

TEST(H5File, RefusesContentsOtherThanExpected) {
  ScratchDirectory const scratch;
  {
    File file = File::create(scratch / "a.h5");
    file.write<float>("/data", {4}, counting(4));
    file.set("text", std::string{"words"});
    file.set("number", 1.5);
    file.close();
  }
  File const file = File::open_read(scratch / "a.h5");
  EXPECT_THAT(message_of<DataError>([&] {
                (void)file.read<float>("/data", {2, 2});
              }),
              AllOf(HasSubstr("/data has the shape (4)"), HasSubstr("(2, 2)")));
  EXPECT_THROW((void)file.read<std::uint64_t>("/data", {4}), DataError);
  EXPECT_THROW((void)file.read<float>("/other", {4}), DataError);
  EXPECT_THROW((void)file.read_texts("/data", 4), DataError);
  EXPECT_THROW((void)file.number<double>("text"), DataError);
  EXPECT_THROW((void)file.number<std::int64_t>("number"), DataError);
  EXPECT_THROW((void)file.text("number"), DataError);
  EXPECT_THAT(message_of<DataError>([&] { (void)file.number<double>("absent"); }),
              HasSubstr("absent"));
}

}  // namespace
}  // namespace offstage::h5
