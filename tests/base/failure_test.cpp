#include "base/failure.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <system_error>

namespace offstage {
namespace {

using ::testing::HasSubstr;

template <class E>
Failure failure(E const& error) {
  return failure_of(std::make_exception_ptr(error));
}

TEST(Failures, SayWhatEveryKindOfExceptionMeans) {
  EXPECT_EQ(failure(DataError{"bad"}).code, ExitCode::data);
  EXPECT_EQ(failure(DataError{"bad"}).text, "bad");
  EXPECT_EQ(failure(std::bad_alloc{}).code, ExitCode::other);
  EXPECT_THAT(failure(std::bad_alloc{}).text, HasSubstr("out of memory"));
  EXPECT_EQ(failure(std::runtime_error{"oops"}).code, ExitCode::internal);
  EXPECT_EQ(failure(std::runtime_error{"oops"}).text, "internal error: oops");
  EXPECT_EQ(failure(5).code, ExitCode::internal);
}

TEST(Failures, OfTheOperatingSystemAreNoBugs) {
  auto const thread =
      failure(std::system_error{std::make_error_code(std::errc::resource_unavailable_try_again)});
  EXPECT_EQ(thread.code, ExitCode::io);
  EXPECT_EQ(thread.text, "the operating system refused: Resource temporarily unavailable");
  auto const file = failure(std::filesystem::filesystem_error{
      "cannot rename", "a", "b", std::make_error_code(std::errc::no_space_on_device)});
  EXPECT_EQ(file.code, ExitCode::io);
  EXPECT_THAT(file.text, HasSubstr("cannot rename: No space left on device [a] [b]"));
}

}  // namespace
}  // namespace offstage
