#include "platform/trace/trace.hpp"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "limits.hpp"
#include "temporary_directory.hpp"

namespace offstage::trace {
namespace {

using nlohmann::json;
using std::chrono::microseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string contents(std::string const& path) {
  std::ifstream file{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}

std::vector<json> events_of(json const& trace, std::string const& phase) {
  std::vector<json> found;
  std::ranges::copy_if(trace, std::back_inserter(found),
                       [&](json const& event) { return event.at("ph") == phase; });
  return found;
}

/// The rows' names by thread.
std::map<int, std::string> rows_of(json const& trace) {
  std::map<int, std::string> rows;
  for (json const& event : events_of(trace, "M")) {
    if (event.at("name") == "thread_name") {
      rows[event.at("tid").get<int>()] = event.at("args").at("name").get<std::string>();
    }
  }
  return rows;
}

class TraceFile : public ::testing::Test {
 protected:
  /// `work` in a process of its own; how that ended, as waitpid tells it.
  static int in_a_child(std::function<void()> const& work) {
    pid_t const child = ::fork();
    if (child == 0) {
      work();
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
  }
  [[nodiscard]] json read() const { return json::parse(contents(path_)); }

  TemporaryDirectory directory_;
  std::string path_ = directory_.path().string() + "/trace-3.json";
  Clock::time_point start_ = Clock::now();
};

TEST_F(TraceFile, IsJsonThatNamesTheProcessItsRowsAndTheSpans) {
  {
    Trace trace{path_, 3, "node7"};
    trace.span("worker 0", "fetch", start_, start_ + microseconds{1500}, 17, 4096);
    trace.span("nvme read", "read", start_, start_ + microseconds{2});
  }
  auto const trace = read();
  auto const metadata = events_of(trace, "M");
  EXPECT_EQ(metadata.at(0).at("name"), "process_name");
  EXPECT_EQ(metadata.at(0).at("args").at("name"), "rank 3 on node7");
  EXPECT_THAT(rows_of(trace), ElementsAre(std::pair{1, "worker 0"}, std::pair{2, "nvme read"}));
  auto const spans = events_of(trace, "X");
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].at("name"), "fetch");
  EXPECT_EQ(spans[0].at("pid"), 3);
  EXPECT_EQ(spans[0].at("tid"), 1);
  EXPECT_DOUBLE_EQ(spans[0].at("dur").get<double>(), 1500.0);
  EXPECT_EQ(spans[0].at("args"), (json{{"key", 17}, {"bytes", 4096}}));
  EXPECT_FALSE(spans[1].contains("args"));
}

TEST_F(TraceFile, CountsSeriesByTheirNames) {
  {
    Trace trace{path_, 3, "node7"};
    trace.counter("memory", start_, std::vector<Sample>{{"a", 4096}, {"b \"c\"", 0}});
    trace.counter("memory", start_ + microseconds{2}, std::vector<Sample>{{"a", -1}});
    trace.counter("nothing", start_, {});
  }
  auto const counters = events_of(read(), "C");
  ASSERT_EQ(counters.size(), 3U);
  EXPECT_EQ(counters[0].at("name"), "memory");
  EXPECT_EQ(counters[0].at("pid"), 3);
  EXPECT_EQ(counters[0].at("args"), (json{{"a", 4096}, {"b \"c\"", 0}}));
  EXPECT_NEAR(counters[1].at("ts").get<double>() - counters[0].at("ts").get<double>(), 2.0, 1e-3);
  EXPECT_EQ(counters[1].at("args"), (json{{"a", -1}}));
  EXPECT_EQ(counters[2].at("args"), json::object());
}

TEST_F(TraceFile, StopsAtItsSizeInTheMiddleOfACounterToo) {
  {
    Trace trace{path_, 0, "n", 4 * KiB};
    for (int i = 0; i < 1000; ++i) {
      trace.counter("memory", start_ + microseconds{i}, std::vector<Sample>{{"a", i}});
    }
  }
  EXPECT_LE(std::filesystem::file_size(path_), std::uintmax_t{4096});
  EXPECT_EQ(events_of(read(), "i").size(), 1U);
  EXPECT_GT(events_of(read(), "C").size(), 10U);
}

TEST_F(TraceFile, CountsMicrosecondsOfTheClockThatTheNodesRanksShare) {
  { Trace{path_, 0, "n"}.span("row", "name", start_, Clock::now()); }
  auto const trace = read();
  auto const expected = std::chrono::duration<double, std::micro>{start_.time_since_epoch()};
  EXPECT_NEAR(events_of(trace, "X").at(0).at("ts").get<double>(), expected.count(), 0.01);
  auto const metadata = events_of(trace, "M");
  auto const wall =
      std::ranges::find(metadata, "wall_clock", [](json const& event) { return event.at("name"); });
  ASSERT_NE(wall, metadata.end());
  auto const now = std::chrono::duration<double, std::micro>{
      std::chrono::system_clock::now().time_since_epoch() - Clock::now().time_since_epoch()};
  EXPECT_NEAR(wall->at("args").at("unix_microseconds_at_ts_0").get<double>(), now.count(), 1e6);
}

TEST_F(TraceFile, SortsRowsInOrderOfFirstUse) {
  {
    Trace trace{path_, 0, "n"};
    for (char const* row : {"z", "a", "m", "a"}) {
      trace.span(row, "x", start_, start_);
    }
  }
  std::vector<int> order;
  for (json const& event : events_of(read(), "M")) {
    if (event.at("name") == "thread_sort_index") {
      order.push_back(event.at("args").at("sort_index").get<int>());
    }
  }
  EXPECT_EQ(order.size(), 3U);
  EXPECT_TRUE(std::ranges::is_sorted(order));
}

TEST_F(TraceFile, DrawsOverlapBesideAndNestingWithinARow) {
  auto const at = [this](int time) { return start_ + microseconds{time}; };
  {
    Trace trace{path_, 0, "n"};
    trace.span("lane", "inner", at(1), at(2));
    trace.span("lane", "outer", at(0), at(4));
    trace.span("lane", "next", at(4), at(6));
    trace.span("lane", "overlap", at(5), at(7));
  }
  auto const trace = read();
  EXPECT_THAT(rows_of(trace), ElementsAre(std::pair{1, "lane"}, std::pair{2, "lane (2)"}));
  std::vector<int> threads;
  for (json const& event : events_of(trace, "X")) {
    threads.push_back(event.at("tid").get<int>());
  }
  EXPECT_THAT(threads, ElementsAre(1, 1, 1, 2));
}

TEST_F(TraceFile, SurvivesAnyName) {
  std::string const nasty{"a\"b\\c\n\x01\xff\0z\x7f\xc2\x9b", 13};
  {
    Trace trace{path_, 0, nasty};
    trace.span(nasty, nasty, start_, start_ - microseconds{5}, -7, -1);
  }
  EXPECT_TRUE(std::ranges::all_of(contents(path_), [](char c) { return c > 0 && c < 0x7f; }));
  auto const spans = events_of(read(), "X");
  EXPECT_EQ(spans.at(0).at("name").get<std::string>().substr(0, 7), "a\"b\\c\n\x01");
  EXPECT_EQ(spans.at(0).at("dur").get<double>(), 0.0);
  EXPECT_FALSE(spans.at(0).contains("args"));
}

TEST_F(TraceFile, StopsAtItsSizeAndSaysSo) {
  for (Bytes const most : {4 * KiB, Bytes{5001}, 300 * KiB}) {
    {
      Trace trace{path_, 0, "n", most};
      for (int i = 0; i < 10'000; ++i) {
        trace.span("row " + std::to_string(i % 40), "x", start_, start_, i, i);
      }
    }
    EXPECT_LE(std::filesystem::file_size(path_), static_cast<std::uintmax_t>(most));
    EXPECT_GT(std::filesystem::file_size(path_), static_cast<std::uintmax_t>(most - 2 * KiB));
    auto const trace = read();
    auto const notes = events_of(trace, "i");
    ASSERT_EQ(notes.size(), 1U);
    EXPECT_THAT(notes[0].at("name").get<std::string>(), HasSubstr("ends here"));
    EXPECT_EQ(trace.back(), notes[0]);
  }
}

TEST_F(TraceFile, HasEverySpanOfThreadsThatRace) {
  constexpr int threads = 4;
  constexpr int spans = 2000;
  {
    Trace trace{path_, 0, "n"};
    std::vector<std::jthread> all;
    for (int thread = 0; thread < threads; ++thread) {
      all.emplace_back([&trace, thread] {
        for (int i = 0; i < spans; ++i) {
          Scope const scope{&trace, thread % 2 == 0 ? "even" : "odd", "work",
                            std::int64_t{thread} * spans + i};
        }
      });
    }
  }
  std::set<std::int64_t> keys;
  for (json const& event : events_of(read(), "X")) {
    keys.insert(event.at("args").at("key").get<std::int64_t>());
  }
  EXPECT_EQ(keys.size(), threads * spans);
}

TEST_F(TraceFile, LoadsWithoutItsEndWhenTheProcessWasKilled) {
  int const status = in_a_child([this] {
    Trace trace{path_, 0, "n"};
    for (int i = 0; i < 5000; ++i) {
      trace.span("row", "x", start_, start_, i);
    }
    ::raise(SIGKILL);
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  auto const trace = json::parse(contents(path_) + "]");
  EXPECT_GT(events_of(trace, "X").size(), 1000U);
}

TEST_F(TraceFile, ReachesTheFileWithinASecondOfSpans) {
  Trace trace{path_, 0, "n"};
  auto const end = Clock::now() + std::chrono::milliseconds{1300};
  while (Clock::now() < end) {
    trace.span("row", "x", Clock::now(), Clock::now());
    std::this_thread::sleep_for(std::chrono::milliseconds{50});
  }
  EXPECT_GE(events_of(json::parse(contents(path_) + "]"), "X").size(), 10U);
}

TEST_F(TraceFile, ThatCannotGrowEndsAfterAWholeEventWithOneWarning) {
  auto const errors = directory_.path().string() + "/errors";
  int const status = in_a_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit const limit{.rlim_cur = 100'000, .rlim_max = 100'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    if (std::freopen(errors.c_str(), "w", stderr) == nullptr) {
      ::_exit(1);
    }
    Trace trace{path_, 0, "n"};
    for (int i = 0; i < 20'000; ++i) {
      trace.span("row", "x", start_, start_, i);
    }
  });
  EXPECT_EQ(status, 0);
  auto const trace = json::parse(contents(path_) + "]");
  EXPECT_GT(events_of(trace, "X").size(), 500U);
  auto const text = contents(errors);
  EXPECT_THAT(text, AllOf(HasSubstr("run.trace"), HasSubstr(path_), HasSubstr("too large")));
  EXPECT_EQ(std::ranges::count(text, '\n'), 1);
}

TEST_F(TraceFile, InAMissingDirectoryIsAnIoErrorThatNamesKeyAndPath) {
  auto const path = directory_.path().string() + "/none/trace-0.json";
  try {
    Trace const trace{path, 0, "n"};
    FAIL();
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("run.trace"), HasSubstr(path)));
  }
}

TEST_F(TraceFile, OnAFullDeviceIsAnIoErrorAtOnce) {
  FileSize const full{100};
  try {
    Trace const trace{path_, 0, "n"};
    FAIL();
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("run.trace: cannot write " + path_));
  }
}

TEST_F(TraceFile, IsNeverWrittenThroughALink) {
  auto const target = directory_.write("target", "another's");
  std::filesystem::create_symlink(target, path_);
  try {
    Trace const trace{path_, 0, "n"};
    FAIL();
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("run.trace: cannot open " + path_ + ": it is a symbolic link"));
  }
  EXPECT_EQ(contents(target), "another's");
}

TEST_F(TraceFile, ThatIsOpenedLaterHoldsWhatWasBefore) {
  {
    Trace trace{path_, 0, "n", MiB, Trace::Begin::later};
    trace.span("row", "before", start_, start_);
    EXPECT_FALSE(std::filesystem::exists(path_));
    trace.open();
    trace.span("row", "after", start_, start_);
    EXPECT_THROW(trace.open(), PreconditionError);
  }
  auto const spans = events_of(read(), "X");
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].at("name"), "before");
  EXPECT_EQ(spans[1].at("name"), "after");
}

TEST_F(TraceFile, ThatIsNeverOpenedLeavesNothing) {
  {
    Trace trace{path_, 0, "n", 64 * MiB, Trace::Begin::later};
    for (int i = 0; i < 20'000; ++i) {  // more than may wait
      trace.span("row", "x", start_, start_, i);
    }
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(TraceFile, WithoutRoomForItsHeadIsRefused) {
  EXPECT_THROW(Trace(path_, 0, "n", 100), PreconditionError);
}

TEST_F(TraceFile, ReplacesTheOneBefore) {
  { Trace{path_, 0, "n"}.span("row", "old", start_, start_); }
  { Trace{path_, 0, "n"}.span("row", "new", start_, start_); }
  auto const spans = events_of(read(), "X");
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].at("name"), "new");
}

TEST(Scope, WithoutATraceDoesNothing) {
  Scope const outer{nullptr, "row", "outer", 1, 2};
  Scope const inner{nullptr, "row", "inner"};
}

}  // namespace
}  // namespace offstage::trace
