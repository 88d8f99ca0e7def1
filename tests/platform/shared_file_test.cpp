#include "platform/memory/shared_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/error.hpp"

namespace offstage::memory {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(SharedFile, IsTheSameMemoryWhereverItIsMapped) {
  auto first = SharedFile::create("do without");
  auto const second = SharedFile::open(first.name(), "do without");
  first.remove_name();
  Bytes const page = system_page_bytes();
  std::array const all{Slice{0, 4 * page}};
  first.allocate(all, 4 * page, "a test", "do without");
  auto const whole = first.map(all);
  ASSERT_EQ(std::ssize(whole.bytes()), 4 * page);
  EXPECT_TRUE(std::ranges::all_of(whole.bytes(), [](std::byte b) { return b == std::byte{0}; }));
  auto const turned = second.map(std::array{Slice{3 * page, page}, Slice{0, 0}, Slice{page, page}});
  ASSERT_EQ(std::ssize(turned.bytes()), 2 * page);
  whole.bytes()[static_cast<std::size_t>(3 * page)] = std::byte{3};
  turned.bytes()[static_cast<std::size_t>(page)] = std::byte{1};
  EXPECT_EQ(turned.bytes()[0], std::byte{3});
  EXPECT_EQ(whole.bytes()[static_cast<std::size_t>(page)], std::byte{1});
  EXPECT_TRUE(first.map({}).bytes().empty());
  EXPECT_THROW((void)first.map(std::array{Slice{1, page}}), PreconditionError);
}

TEST(SharedFile, HasANameUntilItIsTakenAway) {
  std::string path;
  {
    auto file = SharedFile::create("do without");
    path = "/dev/shm" + file.name();
    EXPECT_TRUE(std::filesystem::exists(path));
    EXPECT_EQ(std::filesystem::file_size(path), 0U)
        << "whoever is killed here leaves next to nothing";
    auto const moved = std::move(file);
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path)) << "nor does who fails";
  try {
    (void)SharedFile::open("/offstage-no-such", "do without");
    FAIL() << "opened";
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("/dev/shm/offstage-no-such"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("or do without"));
  }
}

TEST(SharedFile, HasMemoryForAllOfAPartThatIsMadeInPieces) {
  constexpr Bytes part = 70 * MiB;  // more than is made at a time
  if (SharedFile::room() < part) {
    GTEST_SKIP() << "/dev/shm has less room than a part";
  }
  auto const file = SharedFile::create("do without");
  file.allocate(std::array{Slice{0, part}}, part, "a test", "do without");
  EXPECT_EQ(std::filesystem::file_size("/dev/shm" + file.name()), std::uintmax_t{part});
}

TEST(SharedFile, SaysWhatThereIsNoRoomFor) {
  Bytes const whole = Bytes{1} << 60U;
  try {
    SharedFile::require_room(whole, "what a test wants", "set parameters.home=host");
    GTEST_SKIP() << "/dev/shm has no limit";
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("/dev/shm has no room for what a test wants"),
                                    HasSubstr("1152921504606846976 bytes"), HasSubstr("size="),
                                    HasSubstr("or set parameters.home=host")));
  }
  SharedFile::require_room(1, "little", "do without");
}

}  // namespace
}  // namespace offstage::memory
