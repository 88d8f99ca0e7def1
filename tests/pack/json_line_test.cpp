#include "pack/json_line.hpp"

#include <gtest/gtest.h>

#include <string>

#include "pack/json_field.hpp"

namespace offstage::pack {
namespace {

std::string changed_line(std::string_view line) {
  std::string changed;
  return std::string{with_nulls(line, changed)};
}

TEST(JsonLine, HasNullForPythonsNumbersOutsideOfTexts) {
  EXPECT_EQ(changed_line(R"({"a":NaN,"b":[-Infinity, Infinity]})"),
            R"({"a":null,"b":[null, null]})");
  EXPECT_EQ(changed_line(R"({"NaN":"NaN \" NaN","b\\":NaN})"),
            R"({"NaN":"NaN \" NaN","b\\":null})");
  EXPECT_EQ(changed_line(R"(NaN"Infinity\)"), R"(null"Infinity\)");
  EXPECT_EQ(changed_line(R"({"a": 1})"), R"({"a": 1})");
}

TEST(JsonLine, OfPythonHasItsText) {
  EXPECT_EQ(text_field(R"({"score": NaN, "text": "NaN is Infinity"})", "text", ""),
            "NaN is Infinity");
}

}  // namespace
}  // namespace offstage::pack
