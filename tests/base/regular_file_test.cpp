#include "base/regular_file.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include "base/error.hpp"
#include "limits.hpp"
#include "temporary_directory.hpp"

namespace {
bool makes_symbolic_links = false;
}

// In the place of libc's, in this program: as BeeGFS with sysCreateHardlinksAsSymlinks.
extern "C" int link(char const* from, char const* to) noexcept {
  return makes_symbolic_links ? symlink(from, to) : linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

namespace offstage {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ReadFully, StopsWhereTheFileEnds) {
  TemporaryDirectory const directory;
  int const file = ::open(directory.write("file", "contents").c_str(), O_RDWR | O_CLOEXEC);
  std::array<std::byte, 8> out{};
  EXPECT_EQ(read_fully(file, std::span{out}.first(4), 4), 4);
  EXPECT_EQ(read_fully(file, out, 5), 3);
  EXPECT_EQ(errno, 0);
  ::close(file);
  EXPECT_EQ(read_fully(file, out, 0), 0);
  EXPECT_EQ(errno, EBADF);
}

TEST(WriteFully, WritesAtAnOffsetAndWhereTheDescriptorStands) {
  TemporaryDirectory const directory;
  auto const path = directory.write("file", "contents");
  int const file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  EXPECT_EQ(write_fully(file, "CON"), 3);
  std::string const text = "end";
  EXPECT_EQ(write_fully(file, std::as_bytes(std::span{text}), 8), 3);
  std::string found(11, ' ');
  EXPECT_EQ(read_fully(file, std::as_writable_bytes(std::span{found}), 0), 11);
  EXPECT_EQ(found, "CONtentsend");
  ::close(file);
  EXPECT_EQ(write_fully(file, "x"), 0);
  EXPECT_EQ(errno, EBADF);
}

TEST(LinkFile, GivesAFileAnotherName) {
  TemporaryDirectory const directory;
  auto const file = directory.write("file", "contents");
  auto const name = (directory.path() / "name").string();
  EXPECT_TRUE(link_file(file, name));
  EXPECT_TRUE(fs::equivalent(file, name));
  EXPECT_FALSE(link_file(file, name));
  EXPECT_EQ(errno, EEXIST);
}

TEST(LinkFile, TakesASymbolicLinkForNone) {
  TemporaryDirectory const directory;
  auto const file = directory.write("file", "contents");
  auto const name = directory.path() / "name";
  makes_symbolic_links = true;
  bool const linked = link_file(file, name.string());
  makes_symbolic_links = false;
  EXPECT_FALSE(linked);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_FALSE(fs::exists(fs::symlink_status(name)));
}

class RegularFile : public ::testing::Test {
 protected:
  [[nodiscard]] std::string refusal(int flags) const {
    try {
      ::close(open_regular("run.dir: cannot open", path_, flags));
    } catch (IoError const& error) {
      return error.what();
    }
    return "opened";
  }
  [[nodiscard]] static std::string contents(std::string const& path) {
    std::ifstream file{path};
    return {std::istreambuf_iterator<char>{file}, {}};
  }

  TemporaryDirectory directory_;
  std::string path_ = (directory_.path() / "file").string();
};

constexpr int all_flags[] = {O_RDWR, O_WRONLY | O_CREAT | O_APPEND, O_WRONLY | O_CREAT | O_TRUNC};

TEST_F(RegularFile, IsMadeOrOpenedOrMissing) {
  EXPECT_EQ(open_regular("cannot open", path_, O_RDWR), -1);
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_EQ(refusal(O_WRONLY | O_CREAT), "opened");
  EXPECT_EQ(refusal(O_RDWR), "opened");
  directory_.write("file", "text");
  EXPECT_EQ(refusal(O_WRONLY | O_CREAT | O_TRUNC), "opened");
  EXPECT_EQ(contents(path_), "");
}

TEST_F(RegularFile, IsNeverReachedThroughASymbolicLink) {
  auto const target = directory_.write("target", "another's");
  fs::create_symlink(target, path_);
  for (int const flags : all_flags) {
    EXPECT_THAT(refusal(flags), AllOf(HasSubstr("run.dir: cannot open " + path_),
                                      HasSubstr("is a symbolic link"), HasSubstr("remove it")));
  }
  EXPECT_EQ(contents(target), "another's");
}

TEST_F(RegularFile, IsNotMadeWhereALinkToNowhereLeads) {
  fs::create_symlink(directory_.path() / "target", path_);
  for (int const flags : all_flags) {
    EXPECT_THAT(refusal(flags), HasSubstr("is a symbolic link"));
  }
  EXPECT_FALSE(fs::exists(directory_.path() / "target"));
}

TEST_F(RegularFile, IsNoPipeAndNobodyWaitsForOne) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  for (int const flags : all_flags) {
    EXPECT_THAT(refusal(flags), AllOf(HasSubstr(path_), HasSubstr("is no regular file")));
  }
  int const reader = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  EXPECT_THAT(refusal(O_WRONLY | O_CREAT | O_APPEND), HasSubstr("is no regular file"));
  ::close(reader);
}

TEST_F(RegularFile, IsNoDirectoryAndNoDevice) {
  fs::create_directory(path_);
  EXPECT_THAT(refusal(O_WRONLY | O_CREAT), HasSubstr("is no regular file"));
  path_ = "/dev/null";
  EXPECT_THAT(refusal(O_WRONLY | O_CREAT), HasSubstr("/dev/null: it is no regular file"));
}

TEST_F(RegularFile, NamesADirectoryThatIsMissing) {
  auto const none = (directory_.path() / "none").string();
  path_ = none + "/file";
  EXPECT_EQ(refusal(O_WRONLY | O_CREAT), "run.dir: cannot open " + path_ +
                                             ": there is no directory " + none + "; make it first");
}

TEST_F(RegularFile, SaysWhatTheSystemSaysOtherwise) {
  path_ = directory_.write("none", "text") + "/file";
  EXPECT_EQ(refusal(O_WRONLY | O_CREAT), "run.dir: cannot open " + path_ + ": Not a directory");
}

TEST_F(RegularFile, RefusesALinkByName) {
  EXPECT_NO_THROW(refuse_link("cannot remove", path_));
  fs::create_symlink("/nowhere", path_);
  EXPECT_THROW(refuse_link("cannot remove", path_), IoError);
  EXPECT_TRUE(is_link(path_));
  EXPECT_FALSE(is_link(directory_.path().string()));
}

TEST_F(RegularFile, IsWrittenAndReadByItsOwnName) {
  OutputFile file{"run.dir", path_, O_APPEND};
  file.write("one\n");
  fs::rename(path_, path_ + ".moved");
  file.write("two\n");
  file.sync();
  EXPECT_EQ(contents(file.own_name()), "one\ntwo\n");
  file.close();
  EXPECT_EQ(contents(path_ + ".moved"), "one\ntwo\n");
}

TEST_F(RegularFile, IsWholeOrAsItWas) {
  auto const draft = path_ + "." + std::to_string(::getpid()) + ".tmp";
  std::ofstream{path_} << "before";
  {
    WholeFile const file{"report", path_};
    EXPECT_TRUE(fs::exists(draft));
  }
  EXPECT_EQ(contents(path_), "before");
  EXPECT_FALSE(fs::exists(draft));
  {
    FileSize const full{4};
    WholeFile file{"report", path_};
    EXPECT_THROW(file.commit("longer"), IoError);
  }
  EXPECT_EQ(contents(path_), "before");
  EXPECT_FALSE(fs::exists(draft));
  WholeFile{"report", path_}.commit("after");
  EXPECT_EQ(contents(path_), "after");
  EXPECT_FALSE(fs::exists(draft));
  EXPECT_THROW((WholeFile{"report", directory_.path().string()}), IoError);
  fs::remove(path_);
  fs::create_symlink("/nowhere", path_);
  EXPECT_THROW((WholeFile{"report", path_}), IoError);
  EXPECT_FALSE(fs::exists(draft));
}

TEST_F(RegularFile, HasADraftOfItsProcessAlone) {
  std::ofstream{path_ + ".tmp"} << "another's";
  WholeFile{"report", path_}.commit("mine");
  EXPECT_EQ(contents(path_), "mine");
  EXPECT_EQ(contents(path_ + ".tmp"), "another's");
  auto const draft = path_ + "." + std::to_string(::getpid()) + ".tmp";
  fs::create_symlink(path_ + ".tmp", draft);
  EXPECT_THROW((WholeFile{"report", path_}), IoError);
  EXPECT_EQ(contents(path_ + ".tmp"), "another's");
}

TEST_F(RegularFile, IsShortenedToWhatItWas) {
  OutputFile file{"run.dir", path_, O_APPEND};
  file.write("whole\n");
  Bytes const whole = file.size();
  EXPECT_EQ(whole, 6);
  file.write("ha");
  file.shorten(whole);
  file.write("more\n");
  EXPECT_EQ(contents(path_), "whole\nmore\n");
}

TEST_F(RegularFile, SaysWhatItCannotWrite) {
  OutputFile file{"run.dir", path_, O_APPEND};
  FileSize const full{0};
  try {
    file.write("text");
    FAIL();
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("run.dir: cannot write " + path_ + ": File too large"));
  }
}

}  // namespace
}  // namespace offstage
