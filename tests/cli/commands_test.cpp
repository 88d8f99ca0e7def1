#include "cli/commands.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <new>
#include <string>

#include "temporary_directory.hpp"

namespace offstage::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::CaptureStdout;
using ::testing::internal::GetCapturedStderr;
using ::testing::internal::GetCapturedStdout;

struct Outcome {
  ExitCode code;
  std::string out;
  std::string err;
};

Outcome outcome_of(Arguments const& arguments) {
  CaptureStdout();
  CaptureStderr();
  auto const code = run(arguments);
  return {code, GetCapturedStdout(), GetCapturedStderr()};
}

template <class E>
std::pair<ExitCode, std::string> reported(E const& error) {
  CaptureStderr();
  auto const code = report(std::make_exception_ptr(error), "rank 2: ");
  return {code, GetCapturedStderr()};
}

TEST(Commands, HelpIsThereInEveryForm) {
  for (Arguments const& arguments :
       {Arguments{}, Arguments{"help"}, Arguments{"--help"}, Arguments{"-h"}}) {
    auto const [code, out, err] = outcome_of(arguments);
    EXPECT_EQ(code, ExitCode::done);
    EXPECT_THAT(out, HasSubstr("Usage: offstage COMMAND"));
    EXPECT_EQ(err, "");
  }
}

TEST(Commands, HelpOfTrainNeedsNoMpi) {
  auto const [code, out, err] = outcome_of({"train", "--help"});
  EXPECT_EQ(code, ExitCode::done);
  EXPECT_THAT(out, HasSubstr("--train.steps N"));
}

TEST(Commands, HelpOfACommandIsThatCommandsHelp) {
  for (std::string const command :
       {"train", "plan", "probe", "checkpoint", "import", "export", "data", "generate"}) {
    auto const [code, out, err] = outcome_of({"help", command});
    EXPECT_EQ(code, ExitCode::done) << command;
    EXPECT_EQ(out, outcome_of({command, "--help"}).out);
    EXPECT_THAT(out, HasSubstr("Usage: offstage " + command));
  }
  EXPECT_THAT(outcome_of({"help", "data", "pack"}).out, HasSubstr("Usage: offstage data pack"));
  EXPECT_THAT(outcome_of({"help", "help"}).out, HasSubstr("Usage: offstage COMMAND"));
  EXPECT_THAT(outcome_of({"help", "trian"}).err, HasSubstr("the nearest is train"));
}

TEST(Commands, HelpOfAWordIsThatOfTheKeysThatItMayMean) {
  EXPECT_THAT(outcome_of({"help", "ffn"}).out, HasSubstr("--model.ffn-hidden N"));
  EXPECT_THAT(outcome_of({"help", "intermediate_size"}).out, HasSubstr("--model.ffn-hidden N"));
  EXPECT_EQ(outcome_of({"help", "dropout"}).out, "There is no key dropout: there is no dropout.\n");
  EXPECT_THAT(outcome_of({"help", "xyz"}).err, HasSubstr("unknown command 'xyz'"));
}

TEST(Commands, TheVersionIsPrinted) {
  auto const [code, out, err] = outcome_of({"--version"});
  EXPECT_EQ(code, ExitCode::done);
  EXPECT_THAT(out, ::testing::ContainsRegex("^offstage [0-9.]+, commit ([0-9a-f]+|unknown)"));
  EXPECT_THAT(out,
              ::testing::ContainsRegex("libraries: .*MPI.*; oneDNN [0-9.]+, HDF5 [0-9.]+, hwloc"));
  EXPECT_THAT(out, ::testing::ContainsRegex("GPU architectures: ([0-9]|none)"));
}

TEST(Commands, UnknownCommandsNameTheNearest) {
  auto const [code, out, err] = outcome_of({"trian"});
  EXPECT_EQ(code, ExitCode::usage);
  EXPECT_EQ(err,
            "offstage: error: unknown command 'trian'; the nearest is train; see offstage "
            "--help\n");
  EXPECT_THAT(outcome_of({"checkpoint", "verfy", "a"}).err, HasSubstr("the nearest is verify"));
  EXPECT_THAT(outcome_of({"eval"}).err, HasSubstr("the nearest is evaluate"));
  // No word is better than a wrong one.
  EXPECT_THAT(outcome_of({"run"}).err, HasSubstr("unknown command 'run'; known are train, plan, "));
  EXPECT_THAT(outcome_of({"generate", "--model=a"}).err,
              HasSubstr("unknown option --model; see offstage generate --help"));
}

TEST(Commands, CheckpointCommandsCountTheirPaths) {
  EXPECT_EQ(outcome_of({"checkpoint"}).code, ExitCode::usage);
  EXPECT_EQ(outcome_of({"checkpoint", "--help"}).code, ExitCode::done);
  auto const [code, out, err] = outcome_of({"checkpoint", "diff", "a"});
  EXPECT_EQ(code, ExitCode::usage);
  EXPECT_THAT(err, HasSubstr("checkpoint diff takes 2 paths, not 1"));
}

TEST(Commands, GenerateLooksAtItsOptionsBeforeItReadsAnything) {
  EXPECT_EQ(outcome_of({"generate"}).code, ExitCode::usage);
  EXPECT_THAT(outcome_of({"generate", "--help"}).out, HasSubstr("--prompt-tokens N,N"));
  auto const [code, out, err] = outcome_of({"generate", "--from=gone", "--temprature", "1"});
  EXPECT_EQ(code, ExitCode::usage);
  EXPECT_THAT(err, HasSubstr("unknown option --temprature; the nearest is --temperature"));
  EXPECT_THAT(outcome_of({"generate", "--from=gone", "text"}).err, HasSubstr("--help"));
  EXPECT_THAT(outcome_of({"generate", "--from=gone", "--prompt"}).err, HasSubstr("--prompt"));
  EXPECT_THAT(outcome_of({"generate", "--prompt=a"}).err, HasSubstr("--from is missing"));
}

TEST(Commands, ErrorsBecomeOneLineAndTheirCode) {
  EXPECT_EQ(reported(DataError{"bad"}),
            (std::pair{ExitCode::data, std::string{"offstage: error: rank 2: bad\n"}}));
  EXPECT_EQ(reported(IoError{"gone"}).first, ExitCode::io);
  EXPECT_EQ(reported(std::bad_alloc{}).first, ExitCode::other);
  EXPECT_THAT(reported(std::bad_alloc{}).second, HasSubstr("out of memory"));
  EXPECT_EQ(reported(std::runtime_error{"oops"}).first, ExitCode::internal);
  EXPECT_EQ(reported(5).first, ExitCode::internal);
  EXPECT_EQ(reported(std::filesystem::filesystem_error{"x", std::error_code{}}).first,
            ExitCode::io);
}

TEST(Commands, DataInspectShowsAHostileNameOnOneLine) {
  TemporaryDirectory const folder;
  std::string const file = folder.write("a\n  tokens           7\x1b[2J.txt", "some text");
  auto const [code, out, err] = outcome_of({"data", "inspect", file});
  EXPECT_EQ(code, ExitCode::done) << err;
  EXPECT_THAT(out, HasSubstr("a\\x0a  tokens           7\\x1b[2J.txt\n"));
  EXPECT_EQ(out.find('\x1b'), std::string::npos);
  EXPECT_EQ(outcome_of({"data", "inspect", file + "\n"}).err.find('\n') + 1,
            outcome_of({"data", "inspect", file + "\n"}).err.size());
}

}  // namespace
}  // namespace offstage::cli
