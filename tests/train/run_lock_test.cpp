#include "train/files/run_lock.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "platform/cpu/affinity.hpp"
#include "temporary_directory.hpp"

namespace offstage::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string locked_message(std::string const& directory) {
  try {
    RunLock const lock{directory, "run.dir"};
  } catch (LockedError const& error) {
    EXPECT_EQ(error.code(), ExitCode::other);
    return error.what();
  }
  return "not locked";
}

TEST(RunLock, KeepsASecondRunOutAndSaysWhoHoldsIt) {
  TemporaryDirectory const directory;
  RunLock const lock{directory.path().string(), "run.dir"};
  EXPECT_THAT(locked_message(directory.path().string()),
              AllOf(HasSubstr("run.dir=" + directory.path().string()), HasSubstr("host "),
                    HasSubstr("process " + std::to_string(::getpid())), HasSubstr("since "),
                    HasSubstr(directory.path().string() + "/lock")));
}

TEST(RunLock, KeepsAnotherProcessOut) {
  TemporaryDirectory const directory;
  RunLock const lock{directory.path().string(), "run.dir"};
  pid_t const child = ::fork();
  if (child == 0) {
    ::_exit(locked_message(directory.path().string()) == "not locked" ? 1 : 0);
  }
  int status{};
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(RunLock, WhoseFileIsRemovedIsTakenAgain) {
  TemporaryDirectory const directory;
  RunLock lock{directory.path().string(), "run.dir"};
  lock.look_again();
  std::filesystem::remove(directory.path() / "lock");
  lock.look_again();
  EXPECT_THAT(locked_message(directory.path().string()), HasSubstr("is in use by"));
  std::filesystem::remove(directory.path() / "lock");
  RunLock const other{directory.path().string(), "run.dir"};
  EXPECT_THROW(lock.look_again(), LockedError);
}

/// Gives up the lock on an open file of this process without its holder. A file server does so if
/// it has not heard of the node for long.
void lose_lock(std::filesystem::path const& path) {
  for (auto const& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    std::error_code none;
    if (std::filesystem::read_symlink(entry, none) == path) {
      struct flock whole_file {};
      whole_file.l_type = F_UNLCK;
      whole_file.l_whence = SEEK_SET;
      ASSERT_EQ(::fcntl(std::stoi(entry.path().filename()), F_OFD_SETLK, &whole_file), 0);
    }
  }
}

TEST(RunLock, ThatAFileServerHasLostIsTakenAgain) {
  TemporaryDirectory const folder;
  auto const path = std::filesystem::canonical(folder.path());
  RunLock lock{path.string(), "run.dir"};
  lose_lock(path / "lock");
  lock.look_again();
  EXPECT_THAT(locked_message(path.string()), HasSubstr("is in use by"));
  lose_lock(path / "lock");
  RunLock const other{path.string(), "run.dir"};
  EXPECT_THROW(lock.look_again(), LockedError);
}

TEST(RunLock, OfADirectoryThatIsBackWithinSecondsIsKept) {
  TemporaryDirectory const folder;
  auto const path = folder.path() / "run";
  std::filesystem::create_directory(path);
  RunLock lock{path.string() + "/", "run.dir"};
  std::filesystem::rename(path, folder.path() / "away");
  std::thread back{[&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{200});
    std::filesystem::rename(folder.path() / "away", path);
  }};
  lock.look_again();
  back.join();
  EXPECT_THAT(locked_message(path.string()), HasSubstr("is in use by"));
}

TEST(RunLock, OfADirectoryThatWasMovedOrRemovedEndsTheRun) {
  TemporaryDirectory const folder;
  auto const path = folder.path() / "run";
  for (bool const is_made_again : {false, true}) {
    std::filesystem::create_directory(path);
    RunLock lock{path.string(), "run.dir"};
    std::filesystem::rename(path, folder.path() / (is_made_again ? "second" : "first"));
    std::unique_ptr<RunLock> other;
    if (is_made_again) {
      std::filesystem::create_directory(path);
      other = std::make_unique<RunLock>(path.string(), "run.dir");
    }
    try {
      lock.look_again();
      ADD_FAILURE() << "accepted";
    } catch (UsageError const& error) {
      EXPECT_THAT(error.what(), HasSubstr(path.string() + " was moved or removed"));
    }
    std::filesystem::remove_all(path);
  }
}

TEST(RunLock, IsSeenByNodesThatHaveTheSameDirectory) {
  TemporaryDirectory const directory;
  TemporaryDirectory const elsewhere;
  auto const here = directory.path().string();
  RunLock const lock{here, "checkpoint.dir"};
  RunLock const other{elsewhere.path().string(), "checkpoint.dir"};
  RunLock::require_line(lock.line(), here, "checkpoint.dir");
  std::chrono::milliseconds const patience{100};
  try {
    RunLock::require_line("a line of another holder", here, "checkpoint.dir", patience);
    ADD_FAILURE() << "accepted";
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("checkpoint.dir=" + here), HasSubstr("that all nodes share")));
  }
  std::filesystem::remove(directory.path() / "lock");
  EXPECT_THROW(RunLock::require_line(lock.line(), here, "checkpoint.dir", patience), IoError);
}

TEST(RunLock, LetsGoAtItsEnd) {
  TemporaryDirectory const directory;
  { RunLock const lock{directory.path().string(), "run.dir"}; }
  EXPECT_EQ(locked_message(directory.path().string()), "not locked");
}

TEST(RunLock, IsLetGoByTheDeathOfItsProcess) {
  TemporaryDirectory const directory;
  pid_t const child = ::fork();
  if (child == 0) {
    RunLock const lock{directory.path().string(), "run.dir"};
    ::_exit(0);
  }
  int status{};
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(std::filesystem::exists(directory.path().string() + "/lock"));
  EXPECT_EQ(locked_message(directory.path().string()), "not locked");
}

/// A lock that this process holds, in whose file stands a child that has ended. Until this test
/// asks how (forget), the child has no command line, as a killed process that keeps its files open.
class HeldByTheDead : public ::testing::Test {
 protected:
  HeldByTheDead() : child_{::fork()} {
    if (child_ == 0) {
      ::_exit(0);
    }
    siginfo_t how{};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(child_), &how, WEXITED | WNOWAIT), 0);
    std::ofstream{path_ + "/lock"} << "host " << cpu::host_name() << ", process " << child_
                                   << ", since today\n";
  }
  void forget() { EXPECT_EQ(::waitpid(child_, nullptr, 0), child_); }

  TemporaryDirectory directory_;
  std::string path_ = directory_.path().string();
  std::unique_ptr<RunLock> held_ = std::make_unique<RunLock>(path_, "run.dir");
  pid_t child_;
};

TEST_F(HeldByTheDead, IsWaitedForWhileAKilledProcessEnds) {
  std::thread ends{[this] {
    std::this_thread::sleep_for(std::chrono::milliseconds{200});
    held_.reset();
  }};
  EXPECT_EQ(locked_message(path_), "not locked");
  ends.join();
  forget();
}

TEST_F(HeldByTheDead, IsGivenUpSoonWhereTheProcessIsGone) {
  forget();
  EXPECT_THAT(locked_message(path_), HasSubstr("process " + std::to_string(child_)));
}

TEST(RunLock, ARefusedRunDoesNotTouchTheContents) {
  TemporaryDirectory const directory;
  auto const contents = [&] {
    std::stringstream text;
    text << std::ifstream{directory.path().string() + "/lock"}.rdbuf();
    return text.str();
  };
  RunLock const lock{directory.path().string(), "run.dir"};
  auto const before = contents();
  EXPECT_NE(locked_message(directory.path().string()), "not locked");
  EXPECT_EQ(contents(), before);
}

TEST(RunLock, OldContentsOnlyInform) {
  TemporaryDirectory const directory;
  std::ofstream{directory.path().string() + "/lock"} << std::string(2000, 'x');
  RunLock const lock{directory.path().string(), "run.dir"};
  EXPECT_LT(std::filesystem::file_size(directory.path().string() + "/lock"), 500U);
}

TEST(RunLock, ShowsWhateverItsHolderWroteOnAShortLine) {
  TemporaryDirectory const directory;
  RunLock const lock{directory.path().string(), "run.dir"};
  std::ofstream{directory.path().string() + "/lock"} << "\x1b[2J\rforged\x7f"
                                                     << std::string(400, 'x');
  EXPECT_THAT(locked_message(directory.path().string()),
              AllOf(HasSubstr("is in use by \\x1b[2J\\x0dforged\\x7fxxx"), HasSubstr("xxx[...]xxx"),
                    Not(HasSubstr("\x1b")), Not(HasSubstr(std::string(200, 'x')))));
}

TEST(RunLock, AMissingDirectoryIsAnIoError) {
  TemporaryDirectory const directory;
  try {
    RunLock const lock{directory.path().string() + "/none", "checkpoint.dir"};
    FAIL();
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("checkpoint.dir="), HasSubstr("/none/lock")));
  }
}

TEST(RunLock, RemovesTheFileThatItCreated) {
  TemporaryDirectory const directory;
  RunLock lock{directory.path().string(), "run.dir"};
  lock.remove();
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(RunLock, LeavesTheFileThatWasThereBefore) {
  TemporaryDirectory const directory;
  auto const file = directory.write("lock", "");
  RunLock lock{directory.path().string(), "run.dir"};
  lock.remove();
  EXPECT_TRUE(std::filesystem::exists(file));
}

TEST(RunLock, ALinkToNowhereIsAnIoError) {
  TemporaryDirectory const directory;
  std::filesystem::create_symlink("/nowhere/at/all", directory.path() / "lock");
  EXPECT_THROW((RunLock{directory.path().string(), "run.dir"}), IoError);
}

TEST(RunLock, IsNoLinkAndNoPipe) {
  TemporaryDirectory const directory;
  auto const target = directory.write("target", "another's");
  auto const lock = directory.path() / "lock";
  auto const message = [&] {
    try {
      RunLock const held{directory.path().string(), "run.dir"};
    } catch (IoError const& error) {
      return std::string{error.what()};
    }
    return std::string{"locked"};
  };
  std::filesystem::create_symlink(target, lock);
  EXPECT_THAT(message(), AllOf(HasSubstr("run.dir=" + directory.path().string()),
                               HasSubstr(lock.string() + ": it is a symbolic link")));
  EXPECT_EQ(std::filesystem::file_size(target), std::string{"another's"}.size());
  std::filesystem::remove(lock);
  ASSERT_EQ(::mkfifo(lock.c_str(), 0600), 0);
  EXPECT_THAT(message(), HasSubstr("is no regular file"));
}

TEST(RunLock, NeverHasTwoHoldersWhileOthersRemoveTheFile) {
  TemporaryDirectory const directory;
  std::atomic<int> holders = 0;
  std::atomic<int> most = 0;
  auto const work = [&] {
    for (int i = 0; i < 5000; ++i) {
      try {
        RunLock lock{directory.path().string(), "run.dir"};
        int const now = ++holders;
        if (now > most) {
          most = now;
        }
        std::this_thread::yield();
        --holders;
        lock.remove();
      } catch (LockedError const&) {
        std::this_thread::yield();
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back(work);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(most, 1);
}

}  // namespace
}  // namespace offstage::train
