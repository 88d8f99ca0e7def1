#include "base/shared_library.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace offstage {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(SharedLibrary, IsTheFirstThatLoadsAndGivesItsFunctions) {
  SharedLibrary const library{std::vector<std::string>{"/nowhere/libm.so.6", "libm.so.6"}};
  ASSERT_TRUE(library.is_open()) << library.reasons();
  EXPECT_EQ(library.file(), "libm.so.6");
  double (*root)(double) = nullptr;
  ASSERT_TRUE(library.find(root, "sqrt"));
  EXPECT_EQ(root(9.0), 3.0);
  EXPECT_FALSE(library.find(root, "no_such_function"));
}

TEST(SharedLibrary, SaysOfEachFileWhyItCannotBeLoaded) {
  SharedLibrary const library{std::vector<std::string>{"/nowhere/a.so", "/nowhere/b.so"}};
  EXPECT_FALSE(library.is_open());
  EXPECT_THAT(library.reasons(), AllOf(HasSubstr("/nowhere/a.so: "), HasSubstr("/nowhere/b.so: ")));
  void (*function)() = nullptr;
  EXPECT_THROW((void)library.find(function, "sqrt"), PreconditionError);
}

}  // namespace
}  // namespace offstage
