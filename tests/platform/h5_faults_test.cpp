// HDF5 files on a file system that fails: no write is lost without a word.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "platform/failing_calls.hpp"
#include "platform/h5/file.hpp"
#include "platform/scratch_directory.hpp"

namespace offstage::h5 {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

std::vector<std::uint64_t> sample_numbers() {
  std::vector<std::uint64_t> numbers(300);
  std::iota(numbers.begin(), numbers.end(), 17U);
  return numbers;
}

/// A small file with one of everything.
void write_sample(std::string const& path) {
  File file = File::create(path);
  file.set("count", std::int64_t{7});
  file.set("words", std::string(2000, 'w'));
  file.write("/names", std::vector<std::string>{"one", "two"});
  file.write<std::uint64_t>("/deep/numbers", {300}, sample_numbers());
  std::vector<Mapping> const parts{{{{0}, {2}}, "source.h5", "/data", {2}, {{0}, {2}}}};
  file.map("/shown", Type::f32, {2}, parts);
  file.reserve("/checksums", Type::u64, {300});
  file.close();
  File again = File::open_read_write(path);
  again.fill<std::uint64_t>("/checksums", sample_numbers());
  again.close();
}

void expect_sample(std::string const& path) {
  File const file = File::open_read(path);
  EXPECT_EQ(file.number<std::int64_t>("count"), 7);
  EXPECT_EQ(file.text("words"), std::string(2000, 'w'));
  EXPECT_EQ(file.read_texts("/names", 2), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(file.read<std::uint64_t>("/deep/numbers", {300}), sample_numbers());
  EXPECT_EQ(file.read<std::uint64_t>("/checksums", {300}), sample_numbers());
  EXPECT_EQ(file.parts("/shown", {2}), 1);
}

TEST(H5Faults, AFileThatWasClosedHoldsAllThatWasWritten) {
  ScratchDirectory const scratch;
  Call const kinds = Call::write | Call::truncate;
  std::int64_t failures = 0;
  for (std::int64_t nth = 1;; ++nth) {
    std::string const path = scratch / ("once-" + std::to_string(nth));
    FailingCalls const failing{
        {.kinds = kinds, .error_number = EIO, .first = nth, .times = 1, .name = "once-"}};
    bool said = false;
    try {
      write_sample(path);
    } catch (IoError const& error) {
      said = true;
      EXPECT_EQ(error.error_number(), EIO) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("Input/output error"));
    }
    if (failing.failed() == 0) {
      EXPECT_FALSE(said);
      break;
    }
    ++failures;
    if (!said) {
      ADD_FAILURE() << "write " << nth << " failed and nobody said so";
      expect_sample(path);
    }
  }
  EXPECT_GT(failures, 5);
}

/// Writes until the file system is full, from the nth write on, and ends as a program does.
void write_on_a_full_file_system(std::string const& path, std::int64_t nth) {
  {
    FailingCalls const full{{.kinds = Call::write | Call::truncate,
                             .error_number = ENOSPC,
                             .first = nth,
                             .name = "full"}};
    try {
      write_sample(path);
    } catch (IoError const&) {
      std::exit(74);
    }
  }
  std::exit(0);
}

TEST(H5FaultsDeathTest, AFullFileSystemEndsTheProcessByItsExitCode) {
  ScratchDirectory const scratch;
  for (std::int64_t nth = 1; nth <= 6; ++nth) {
    std::string const path = scratch / ("full-" + std::to_string(nth));
    EXPECT_EXIT(write_on_a_full_file_system(path, nth), ExitedWithCode(74), "") << nth;
  }
}

TEST(H5Faults, AReadThatFailsIsNoDamage) {
  ScratchDirectory const scratch;
  std::string const path = scratch / "sample.h5";
  write_sample(path);
  for (int const error_number : {EIO, ESTALE, EMFILE}) {
    std::int64_t failures = 0;
    for (std::int64_t nth = 1;; ++nth) {
      FailingCalls const failing{{.kinds = Call::open | Call::read,
                                  .error_number = error_number,
                                  .first = nth,
                                  .times = 1,
                                  .name = "sample.h5"}};
      try {
        expect_sample(path);
      } catch (IoError const& error) {
        EXPECT_EQ(error.error_number(), error_number) << error.what();
      }
      if (failing.failed() == 0) {
        break;
      }
      ++failures;
    }
    EXPECT_GT(failures, 2);
  }
  std::filesystem::remove(path);
  EXPECT_THROW((void)File::open_read(path), DataError);
  std::filesystem::create_directory(path);
  EXPECT_THROW((void)File::open_read(path), DataError);
}

// HDF5 itself could open nothing any more, or would crash, had it been asked.
TEST(H5Faults, NoFileIsOpenedWithoutMemoryAndAllAreLater) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs all addresses";
#endif
  ScratchDirectory const scratch;
  { (void)File::create(scratch / "a.h5"); }
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  std::size_t pages = 0;
  std::ifstream{"/proc/self/statm"} >> pages;
  struct rlimit low = before;
  low.rlim_cur = pages * static_cast<std::size_t>(getpagesize()) + (16U << 20);
  int error_number = 0;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &low), 0);
  try {
    (void)File::open_read(scratch / "a.h5");
  } catch (IoError const& error) {
    error_number = error.error_number();
  }
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(error_number, ENOMEM);
  EXPECT_NO_THROW((void)File::open_read(scratch / "a.h5"));
}

}  // namespace
}  // namespace offstage::h5
