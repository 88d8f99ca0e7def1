#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "base/stopwatch.hpp"
#include "platform/slurm/job.hpp"
#include "platform/slurm/squeue.hpp"
#include "temporary_directory.hpp"

namespace offstage::slurm {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

Environment table(std::map<std::string, std::string> values) {
  return [values = std::move(values)](char const* name) -> char const* {
    auto const found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  };
}

TEST(SlurmJob, IsNoneOutsideOfSlurm) {
  EXPECT_FALSE(job_of(table({})));
  for (char const* id : {"", "x", "12x", "-1", "99999999999999999999", " 12"}) {
    EXPECT_FALSE(job_of(table({{"SLURM_JOB_ID", id}}))) << id;
  }
}

TEST(SlurmJob, HasWhatTheEnvironmentTells) {
  auto const job = job_of(table({{"SLURM_JOB_ID", "4711"},
                                 {"SLURM_JOB_NAME", "train"},
                                 {"SLURM_RESTART_COUNT", "2"},
                                 {"SLURM_ARRAY_JOB_ID", "4709"},
                                 {"SLURM_ARRAY_TASK_ID", "3"},
                                 {"SLURM_JOB_NODELIST", "n[1-2]"},
                                 {"SLURM_JOB_END_TIME", "1763745600"}}));
  ASSERT_TRUE(job);
  EXPECT_EQ(job->id, "4711");
  EXPECT_EQ(job->restart_count, 2);
  EXPECT_EQ(job->array_task, 3);
  EXPECT_EQ(job->nodes, "n[1-2]");
  EXPECT_EQ(job->end, TimePoint{seconds{1'763'745'600}});
  EXPECT_EQ(describe(*job), "4711 (train), restart 2, task 3 of array 4709");
}

TEST(SlurmJob, KnowsRanksThatSlurmsPmixBringsTogether) {
  EXPECT_TRUE(has_slurm_pmix(table({{"PMIX_NAMESPACE", "slurm.pmix.4711.0"}})));
  EXPECT_FALSE(has_slurm_pmix(
      table({{"PMIX_NAMESPACE", "2063466497"}, {"SLURM_STEP_ID", "0"}})));  // mpirun's in a job
  EXPECT_FALSE(has_slurm_pmix(table({})));
}

TEST(SlurmJob, KnowsWhetherItWasGivenGpus) {
  EXPECT_EQ(given_gpus(table({{"SLURM_GPUS_ON_NODE", "4"}})), 4);
  EXPECT_EQ(given_gpus(table({{"SLURM_STEP_GPUS", "0,1"}})), 1);
  EXPECT_EQ(given_gpus(table({{"SLURM_GPUS_ON_NODE", "0"}, {"SLURM_JOB_GPUS", ""}})), 0);
  EXPECT_EQ(given_gpus(table({{"SLURM_JOB_ID", "7"}})), 0);
}

TEST(SlurmJob, TakesWhatMakesNoSenseAsMissing) {
  auto const job = job_of(table({{"SLURM_JOB_ID", "7"},
                                 {"SLURM_JOB_NAME", "a\nb\x7f"},
                                 {"SLURM_RESTART_COUNT", "many"},
                                 {"SLURM_ARRAY_TASK_ID", "3"},
                                 {"SLURM_JOB_END_TIME", "soon"}}));
  ASSERT_TRUE(job);
  EXPECT_EQ(job->name, "a\\x0ab\\x7f");
  EXPECT_EQ(job->restart_count, 0);
  EXPECT_FALSE(job->array_task) << "a task without an array";
  EXPECT_FALSE(job->end);
  EXPECT_EQ(describe(*job), "7 (a\\x0ab\\x7f)");
}

TEST(SlurmJob, NamesItsNodeOrTheHost) {
  EXPECT_EQ(node_name(table({{"SLURMD_NODENAME", "n2"}}), "host"), "n2");
  EXPECT_EQ(node_name(table({{"SLURMD_NODENAME", ""}}), "host"), "host");
  EXPECT_EQ(node_name(table({}), "host"), "host");
}

TEST(SlurmTime, IsSecondsOrACalendarInUtc) {
  EXPECT_EQ(parse_time("1763745600"), TimePoint{seconds{1'763'745'600}});
  EXPECT_EQ(parse_time("2025-11-21T17:20:00\n"), TimePoint{seconds{1'763'745'600}});
  EXPECT_EQ(parse_time("2024-02-29T00:00:00"), TimePoint{seconds{1'709'164'800}});
}

TEST(SlurmTime, IsUnknownForAllElse) {
  for (char const* text : {"",
                           "\n",
                           "0",
                           "-5",
                           "NONE",
                           "UNLIMITED",
                           "Unknown",
                           "N/A",
                           "2025-11-21",
                           "2025-13-01T00:00:00",
                           "2025-02-29T00:00:00",
                           "2025-11-21T24:00:00",
                           "2025-11-21 17:20:00",
                           "20251121T172000",
                           "2025-11-21T17:20:00+01",
                           "17:20:00",
                           "99999999999999999999999",
                           "999999999999999",
                           "253402300799",
                           "9999-12-31T23:59:59"}) {
    EXPECT_FALSE(parse_time(text)) << text;
  }
}

/// A script in the place of squeue.
class Squeue : public ::testing::Test {
 protected:
  [[nodiscard]] Answer ask(std::string const& script, Seconds patience = Seconds{20}) const {
    std::string const path = directory_.write("squeue", "#!/bin/sh\n" + script + "\n");
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return ask_end_time("4711", patience, path);
  }
  TemporaryDirectory directory_;
};

TEST_F(Squeue, IsAskedForTheEndOfTheJobInUtc) {
  auto const answer =
      ask("[ \"$*\" = '-h -j 4711 -o %A %e' ] && [ \"$TZ\" = UTC0 ] && [ -z \"$SQUEUE_FORMAT\" ] &&"
          "[ \"$SLURM_TIME_FORMAT\" = standard ] && echo 4711 2025-11-21T17:20:00");
  EXPECT_EQ(answer.problem, "");
  EXPECT_EQ(answer.end, TimePoint{seconds{1'763'745'600}});
}

TEST_F(Squeue, ThatKnowsOfNoLimitIsNoProblem) {
  for (char const* const word : {"UNLIMITED", "NONE", "N/A"}) {
    auto const answer = ask(std::string{"echo 4711 "} + word);
    EXPECT_FALSE(answer.end) << word;
    EXPECT_EQ(answer.problem, "") << word;
    EXPECT_EQ(answer.has_no_limit, std::string{word} != "N/A") << word;
  }
}

TEST_F(Squeue, AnswersForTheTasksOfAnArrayOfWhichTheJobIsOne) {
  auto const answer =
      ask("echo 4709 2025-11-21T09:00:00; echo 4711 2025-11-21T17:20:00; echo 47112 UNLIMITED; "
          "seq -f '%g 2025-11-21T18:00:00' 5000 6000");
  EXPECT_EQ(answer.end, TimePoint{seconds{1'763'745'600}});
  EXPECT_THAT(ask("seq -f '%g 2025-11-21T18:00:00' 4712 5711; echo 4711 UNLIMITED").problem, "");
  EXPECT_THAT(ask("echo 4709 2025-11-21T17:20:00").problem, HasSubstr("said '4709 2025"));
}

TEST_F(Squeue, IsUnderstoodBesideWhatItComplainsOf) {
  auto const answer =
      ask("echo 'squeue: warning: an old option in slurm.conf' >&2; echo 4711 2025-11-21T17:20:00; "
          "echo 'squeue: warning: it goes' >&2");
  EXPECT_EQ(answer.problem, "");
  EXPECT_EQ(answer.end, TimePoint{seconds{1'763'745'600}});
}

TEST_F(Squeue, ThatFailsIsQuoted) {
  EXPECT_THAT(ask("echo 'slurm_load_jobs error: Invalid job id' >&2; exit 1").problem,
              AllOf(HasSubstr("squeue said"), HasSubstr("Invalid job id")));
  EXPECT_THAT(ask("exit 1").problem, HasSubstr("said ''"));
  EXPECT_THAT(ask("printf 'a\\nb\\033[2J\\n'").problem, HasSubstr("said 'a\\x0ab\\x1b[2J'"));
  EXPECT_THAT(ask_end_time("1", Seconds{1}, "no-such-squeue").problem,
              AllOf(HasSubstr("no-such-squeue"), HasSubstr("No such file")));
}

TEST_F(Squeue, ThatHangsOrNeverEndsToWriteIsGivenUp) {
  Stopwatch const watch;
  EXPECT_THAT(ask("exec sleep 60", Seconds{0.2}).problem, HasSubstr("no answer within 0.2 s"));
  EXPECT_NE(ask("exec yes").problem, "");
  EXPECT_LT(watch.elapsed().count(), 30.0);
}

}  // namespace
}  // namespace offstage::slurm
