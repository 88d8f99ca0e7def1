// Several paths of a process and of a node.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.hpp"
#include "tiers/storage_path_support.hpp"

namespace offstage::tiers {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MakePathsTest : public StoragePathTest {
 protected:
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span{all->paths}); }
  std::vector<PathSettings> two() { return {settings(), settings()}; }
  Shared<SharedCount> all;
};

TEST_F(MakePathsTest, PathsOnOneDeviceShareTheLockOfTheFirst) {
  auto const paths = make_paths({two(), {}, bytes(), kernel});
  ASSERT_EQ(paths->size(), 2U);
  read(*paths->at(0));
  read(*paths->at(1), 2);
  EXPECT_EQ(all->paths[0].read_lock.released, 3U);
  EXPECT_EQ(all->paths[1].read_lock.next_ticket, 0U);
}

TEST_F(MakePathsTest, WithoutSharedMemoryTheyExcludeEachOtherWithinTheProcess) {
  auto const paths = make_paths({two(), {}, {}, kernel});
  {
    NamedThread const other{"other", [&] { hurry(*paths->at(1), 25); }};
    hurry(*paths->at(0), 25);
  }
  EXPECT_EQ(count.most, 1);
}

TEST_F(MakePathsTest, WithoutExclusivePathsOnOneDeviceMoveAtTheSameTime) {
  auto const paths = make_paths({two(), {false, false}, bytes(), kernel});
  kernel->meanwhile = [this](aio::Transfer const&) { wait_until([&] { return count.most == 2; }); };
  NamedThread other{"other", [&] { read(*paths->at(1)); }};
  read(*paths->at(0));
  other.join();
  EXPECT_EQ(all->paths[0].read_lock.next_ticket, 0U);
}

TEST_F(MakePathsTest, APathThatOneProcessLeavesOutIsLeftOutForAllAndSaidOnce) {
  for (bool const exclusive : {true, false}) {
    Shared<PathShared[2]> pair;
    auto const bytes_of_both = std::as_writable_bytes(std::span{*pair});
    auto const mine = make_paths({two(), {exclusive, exclusive}, bytes_of_both, kernel});
    auto const others = make_paths({two(), {exclusive, exclusive}, bytes_of_both, kernel});
    testing::internal::CaptureStderr();
    others->at(1)->leave_out("no space");
    EXPECT_FALSE(mine->at(1)->writable());
    EXPECT_TRUE(mine->at(0)->writable());
    EXPECT_EQ(others->at(1)->why_left_out(), "no space");
    EXPECT_THAT(mine->at(1)->why_left_out(), HasSubstr("another process"));
    EXPECT_EQ(mine->at(0)->why_left_out(), "");
    mine->at(1)->leave_out("no space here either");
    EXPECT_EQ(mine->at(1)->why_left_out(), "no space here either");
    std::string const said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(said.find("is left out"), said.rfind("is left out")) << said;
    EXPECT_THAT(said, HasSubstr("no space"));
  }
}

TEST_F(MakePathsTest, AnEmulatedPathIsADeviceOfItsOwn) {
  auto three = two();
  three.push_back(settings());
  three[1].emulation = three[2].emulation = Emulation{1e9, 1e9, Seconds{0.0}, Duplex::half};
  Shared<PathShared[3]> apart;
  auto const paths = make_paths({three, {}, std::as_writable_bytes(std::span{*apart}), kernel});
  for (auto const& path : *paths) {
    read(*path);
  }
  for (PathShared const& path : *apart) {
    EXPECT_EQ(path.read_lock.released, 1U);
  }
  EXPECT_EQ((*apart)[0].throttle.read_busy_until, 0);
  EXPECT_GT((*apart)[1].throttle.read_busy_until, 0);
  EXPECT_GT((*apart)[2].throttle.read_busy_until, (*apart)[1].throttle.read_busy_until);
}

TEST_F(MakePathsTest, ARealPathWaitsForNoEmulatedOne) {
  auto three = two();
  three.push_back(settings());
  three[0].emulation = Emulation{1e9, 1e9, Seconds{0.0}, Duplex::half};
  EXPECT_THAT(lock_owners(three), ElementsAre(0U, 1U, 1U));
}

TEST_F(MakePathsTest, NoPathsAreNone) {
  EXPECT_TRUE(make_paths({})->empty());
  EXPECT_EQ(shared_bytes({}), 0);
}

TEST_F(MakePathsTest, AMissingDirectoryIsNamedWithTheKey) {
  PathSettings missing = settings();
  missing.directory = scratch / "gone";
  try {
    (void)make_paths({{settings(), missing}});
    FAIL() << "no error";
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("tiers.path = " + missing.directory),
                                    HasSubstr("name a directory that exists")));
  }
}

TEST_F(MakePathsTest, SharedMemoryHasToSufficeAndBeAligned) {
  EXPECT_EQ(shared_bytes(two()), static_cast<Bytes>(sizeof(all->paths)));
  EXPECT_THROW((void)make_paths({two(), {}, bytes().first(sizeof(PathShared))}), PreconditionError);
  EXPECT_THROW((void)make_paths({{settings()}, {}, bytes().subspan(8)}), PreconditionError);
}

}  // namespace
}  // namespace offstage::tiers
