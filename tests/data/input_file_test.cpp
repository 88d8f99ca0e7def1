#include "data/input_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstddef>

#include "base/error.hpp"
#include "formats.hpp"
#include "platform/failing_calls.hpp"
#include "temporary_directory.hpp"

namespace offstage::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(InputFile, ThatIsNotThereIsBadInput) {
  TemporaryDirectory const folder;
  EXPECT_THAT(data_error([&] {
                InputFile{folder.path() / "none", "data.train"};
              }),
              AllOf(HasSubstr("data.train="), HasSubstr("name a readable file")));
}

TEST(InputFile, ThatCannotBeOpenedNowIsNoBadInput) {
  TemporaryDirectory const folder;
  std::string const path = folder.write("a.txt", "abc");
  for (Call const call : {Call::open, Call::size}) {
    for (int const error : {EIO, ESTALE, EMFILE, ENFILE, ENOMEM}) {
      FailingCalls const failing{{.kinds = call, .error_number = error, .name = "a.txt"}};
      try {
        InputFile const file{path, "data.train"};
        ADD_FAILURE() << "no error " << error;
      } catch (IoError const& failed) {
        EXPECT_EQ(failed.error_number(), error);
        EXPECT_THAT(failed.what(), HasSubstr("data.train=" + path + ": cannot open"));
      }
      EXPECT_EQ(failing.failed(), 1);
    }
  }
}

TEST(InputFile, IsOpenedAgainAfterASignal) {
  TemporaryDirectory const folder;
  std::string const path = folder.write("a.txt", "abc");
  FailingCalls const failing{
      {.kinds = Call::open, .error_number = EINTR, .times = 2, .name = "a.txt"}};
  InputFile const file{path, "data.train"};
  EXPECT_EQ(failing.failed(), 2);
  std::array<std::byte, 3> bytes{};
  file.read(0, bytes);
  EXPECT_EQ(bytes[2], std::byte{'c'});
}

// So after the eviction of a client of Lustre.
TEST(InputFile, IsReadAgainAfterAFailureThatPasses) {
  TemporaryDirectory const folder;
  InputFile const file{folder.write("a.txt", "abc"), "data.train"};
  for (int const error : {EIO, ESHUTDOWN, ESTALE}) {
    FailingCalls const failing{
        {.kinds = Call::read, .error_number = error, .times = 2, .name = "a.txt"}};
    std::array<std::byte, 3> bytes{};
    file.read(0, bytes);
    EXPECT_EQ(bytes[2], std::byte{'c'});
    EXPECT_EQ(failing.failed(), 2);
  }
}

TEST(InputFile, ThatCannotBeReadForLongIsNoBadInput) {
  TemporaryDirectory const folder;
  std::string const path = folder.write("a.txt", "abc");
  InputFile const file{path, "data.train"};
  FailingCalls const failing{{.kinds = Call::read, .error_number = EIO, .name = "a.txt"}};
  std::array<std::byte, 3> bytes{};
  try {
    file.read(0, bytes);
    ADD_FAILURE() << "no error";
  } catch (IoError const& failed) {
    EXPECT_THAT(failed.what(), HasSubstr("data.train=" + path + ": cannot read at byte 0: Input"));
  }
}

}  // namespace
}  // namespace offstage::data
