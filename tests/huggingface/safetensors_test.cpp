#include "huggingface/safetensors.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "huggingface/sample.hpp"
#include "huggingface/tensor_file.hpp"
#include "temporary_directory.hpp"

namespace offstage::huggingface {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refusal(std::string const& header, Bytes buffer_bytes) {
  return message_of<DataError>([&] { (void)parse_header(header, buffer_bytes, "the-file"); });
}

TEST(SafetensorsHeader, GivesTensorsAndTheirPlaceInTheFile) {
  std::string const json =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )";
  auto const tensors = parse_header(json, 16, "the-file");
  auto const header = static_cast<Bytes>(json.size()) + 8;
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors.at("a").begin, header);
  EXPECT_EQ(tensors.at("b").begin, header + 4);
  EXPECT_EQ(tensors.at("b").end, header + 16);
  EXPECT_THAT(tensors.at("b").shape, testing::ElementsAre(2, 3));
  EXPECT_EQ(tensors.at("b").dtype, "BF16");
}

TEST(SafetensorsHeader, MayBeEmptyOrHoldEmptyTensors) {
  EXPECT_TRUE(parse_header("{}", 0, "the-file").empty());
  EXPECT_EQ(
      parse_header(R"({"a":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]}})", 0, "f").size(),
      1U);
}

TEST(SafetensorsHeader, IsRefusedWithTheReason) {
  struct Case {
    char const* header;
    Bytes buffer;
    char const* reason;
  };
  // clang-format off
  for (Case const& wrong : {
    Case{"", 0, "does not begin with '{'"},
    Case{"[]", 0, "does not begin with '{'"},
    Case{"{", 0, "its header is no JSON: mistake at its byte 2 (unexpected end of input)"},
    Case{"{} x", 0, "no JSON"},
    Case{R"({"a":1})", 0, "'a' must be an object"},
    Case{R"({"a":{"dtype":"F32","shape":[1]}})", 4, "'a' has no data_offsets"},
    Case{R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "'a' has no shape"},
    Case{R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "'a' has no dtype"},
    Case{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4, "unknown field 'x'"},
    Case{R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "'dtype' twice"},
    Case{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "'a' is there twice"},
    Case{R"({"__metadata__":{},"__metadata__":{}})", 0, "'__metadata__' is there twice"},
    Case{R"({"__metadata__":{"a":1}})", 0, "map of strings"},
    Case{R"({"__metadata__":"a"})", 0, "map of strings"},
    Case{R"({"__metadata__":{"a":"1","a":"2"}})", 0, "'a' twice"},
    Case{R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4, "unknown dtype 'F33'"},
    Case{R"({"a":{"dtype":4,"shape":[1],"data_offsets":[0,4]}})", 4, "has a dtype"},
    Case{R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "no list of whole numbers"},
    Case{R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "no list of whole numbers"},
    Case{R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4, "no list of whole numbers"},
    Case{R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4, "shape of the wrong kind"},
    Case{R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4, "no list of whole numbers"},
    Case{R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4, "more than 2^57"},
    Case{R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", 1, "no whole number of bytes"},
    Case{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "not two numbers"},
    Case{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "takes 8 bytes"},
    Case{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "data_offsets are 4 and 0"},
    Case{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "there is a hole"},
    Case{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8, "too long"},
    Case{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, "of 4 bytes"},
    Case{R"({"a\n\u001b[m":1})", 0, R"('a\x0a\x1b[m' must be an object)"},
    Case{R"({"a":{"dtype":"F\u001b","shape":[1],"data_offsets":[0,4]}})", 4, R"(unknown dtype 'F\x1b')"},
    Case{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "they overlap"},
  }) {
    // clang-format on
    EXPECT_THAT(refusal(wrong.header, wrong.buffer),
                AllOf(HasSubstr("the-file: "), HasSubstr(wrong.reason)))
        << wrong.header;
  }
}

TEST(TensorFile, WidensSixteenBitsExactly) {
  TemporaryDirectory const folder;
  std::string const path = folder.write(
      "x", safetensors({{"b", "BF16", {3}, bytes_of<std::uint16_t>({0x3F80, 0x0001, 0xFF80})},
                        {"f", "F32", {2}, bytes_of<float>({1e-40F, -0.0F})},
                        {"h", "F16", {3}, bytes_of<std::uint16_t>({0x3C00, 0x0001, 0x7BFF})}}));
  TensorFile const file{path};
  auto const read = [&](char const* name, std::int64_t first, std::size_t count) {
    std::vector<float> out(count);
    file.read(file.tensors().at(name), first, out);
    return out;
  };
  EXPECT_THAT(read("b", 0, 3),
              testing::ElementsAre(1.0F, 0x1p-133F, -std::numeric_limits<float>::infinity()));
  EXPECT_THAT(read("b", 1, 1), testing::ElementsAre(0x1p-133F));
  EXPECT_THAT(read("h", 0, 3), testing::ElementsAre(1.0F, 0x1p-24F, 65504.0F));
  EXPECT_THAT(read("f", 0, 1), testing::ElementsAre(1e-40F));
  EXPECT_TRUE(std::signbit(read("f", 1, 1)[0]));
}

TEST(TensorFile, RefusesWhatIsNoneOrCut) {
  TemporaryDirectory const folder;
  auto const refused = [&](std::string const& contents) {
    std::string const path = folder.write("x", contents);
    return message_of<DataError>([&] { TensorFile const file{path}; });
  };
  std::string const good = safetensors({{"a", "F32", {2}, bytes_of<float>({1, 2})}});
  EXPECT_THAT(refused(""), HasSubstr("it has 0 bytes"));
  EXPECT_THAT(refused(good.substr(0, 20)), HasSubstr("cut short"));
  EXPECT_THAT(refused(good.substr(0, good.size() - 1)), HasSubstr("a"));
  EXPECT_THAT(refused(std::string(8, '\xFF') + good), HasSubstr("at most 100000000"));
  EXPECT_THAT(message_of<DataError>([&] { TensorFile const f{folder.path() / "none"}; }),
              HasSubstr("no such file"));
  EXPECT_THAT(message_of<DataError>([&] { TensorFile const f{folder.path()}; }),
              HasSubstr("no regular file"));
}

TEST(TensorFile, NoticesThatItWasCutWhileItWasOpen) {
  TemporaryDirectory const folder;
  std::string const good = safetensors({{"a", "F32", {2}, bytes_of<float>({1, 2})}});
  std::string const path = folder.write("x", good);
  TensorFile const file{path};
  std::filesystem::resize_file(path, good.size() - 4);
  std::vector<float> out(2);
  EXPECT_THAT(message_of<DataError>([&] { file.read(file.tensors().at("a"), 0, out); }),
              HasSubstr("was cut meanwhile"));
}

}  // namespace
}  // namespace offstage::huggingface
