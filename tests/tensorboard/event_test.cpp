#include "tensorboard/event.hpp"

#include <gmock/gmock.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.hpp"
#include "limits.hpp"
#include "temporary_directory.hpp"
#include "tensorboard/crc32c.hpp"
#include "tensorboard/event_file.hpp"

namespace offstage::tensorboard {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Of RFC 3720, appendix B.4, and of the digits, as lists of checksums have them.
TEST(Crc32c, IsThatOfTheStandard) {
  EXPECT_EQ(crc32c(""), 0x00000000U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43U);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
}

TEST(Crc32c, IsMaskedByARotationAndAConstant) {
  EXPECT_EQ(masked_crc32c(""), 0xA282EAD8U);
  // 0xE3069283 turned right by 15 is 0x2507C60D.
  EXPECT_EQ(masked_crc32c("123456789"), 0x2507C60DU + 0xA282EAD8U);
}

// By hand, of the wire format: field number << 3 | kind, then the value.
TEST(Events, AreProtobuf) {
  using namespace std::string_literals;
  auto const time_and_step_300 = "\x09\x00\x00\x00\x00\x00\x00\xf8\x3f\x10\xac\x02"s;  // 1.5, 300
  EXPECT_EQ(start_event(1.5, 300), time_and_step_300 + "\x3a\x02\x08\x01"s);
  EXPECT_EQ(version_event(1.5),
            "\x09\x00\x00\x00\x00\x00\x00\xf8\x3f\x10\x00\x1a\x0d"s + "brain.Event:2");
  std::array<Scalar, 1> const loss{{{"loss", 2.0}}};
  EXPECT_EQ(scalars_event(1.5, 300, loss),
            time_and_step_300 + "\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\x00\x40"s);
}

TEST(Events, AreFramedByLengthAndChecksums) {
  auto const record = framed("123456789");
  ASSERT_EQ(record.size(), 8U + 4U + 9U + 4U);
  EXPECT_EQ(record.substr(0, 8), std::string("\x09\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 9), "123456789");
  EXPECT_EQ(record.substr(21), "\xe5\xb0\x8a\xc7");  // 0xC78AB0E5
}

std::vector<std::string> names_in(std::filesystem::path const& directory) {
  std::vector<std::string> names;
  for (auto const& entry : std::filesystem::directory_iterator{directory}) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

TEST(EventFileOf, IsCalledSoThatTensorboardFindsItAndNeverReplacesAnother) {
  TemporaryDirectory const directory;
  EventFile const one{directory.path().string(), "node1", 1};
  EventFile const other{directory.path().string(), "node1", 1};
  EXPECT_THAT(
      names_in(directory.path()),
      ::testing::Each(MatchesRegex("events\\.out\\.tfevents\\.[0-9]{10}\\.node1\\.[0-9]+\\.[01]")));
  EXPECT_EQ(names_in(directory.path()).size(), 2U);
}

// TensorBoard never reads a name that comes before one it knows. The clock was ahead, or is back.
TEST(EventFileOf, ComesBehindTheFilesOfEarlierStarts) {
  TemporaryDirectory const directory;
  for (char const* const name :
       {"events.out.tfevents.4000000000.node9.7.0", "events.out.tfevents.0000000042.node9.7.0",
        "events.out.tfevents.99999999999999999.node9.7.0", "events.out.tfevents.of-others"}) {
    directory.write(name, "");
  }
  EventFile const one{directory.path().string(), "node1", 1};
  EventFile const other{directory.path().string(), "node1", 1};
  auto const names = names_in(directory.path());
  EXPECT_THAT(names,
              ::testing::Contains(::testing::StartsWith("events.out.tfevents.4000000001.node1.")));
  EXPECT_THAT(names,
              ::testing::Contains(::testing::StartsWith("events.out.tfevents.4000000002.node1.")));
}

TEST(EventFileOf, ADirectoryThatIsNotThereIsAnErrorThatNamesTheKey) {
  try {
    EventFile const file{"/nowhere/at/all", "node1", 1};
    FAIL();
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("run.tensorboard: cannot open /nowhere/at/all/events"));
  }
}

TEST(EventFileOf, ADiskThatIsFullIsOneWarningAndNoError) {
  TemporaryDirectory const directory;
  EventFile file{directory.path().string(), "node1", 1};
  std::array<Scalar, 1> const loss{{{std::string(2000, 'a'), 2.0}}};
  ::testing::internal::CaptureStderr();
  {
    FileSize const full{1000};  // of what is said, too
    file.write(1, loss);
    file.write(2, loss);
  }
  file.write(3, loss);
  auto const said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("run.tensorboard: cannot write"));
  EXPECT_THAT(said, HasSubstr("the run goes on"));
  EXPECT_EQ(std::ranges::count(said, '\n'), 1);
}

}  // namespace
}  // namespace offstage::tensorboard
