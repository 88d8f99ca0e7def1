// The job scripts read a few keys themselves (slurm/run_directory.sh). The program is the
// reference.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "cli/given_values.hpp"
#include "temporary_directory.hpp"

namespace offstage::cli {
namespace {

constexpr std::array<char const*, 4> keys{"run.dir", "checkpoint.dir", "checkpoint.resume",
                                          "tiers.path"};

/// What a shell command prints.
std::string output_of(std::string const& command) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> const pipe{popen(command.c_str(), "r"), pclose};
  std::string output;
  std::array<char, 4096> piece{};
  for (std::size_t size = 1; size > 0;) {
    size = std::fread(piece.data(), 1, piece.size(), pipe.get());
    output.append(piece.data(), size);
  }
  return output;
}

class JobScripts : public ::testing::Test {
 protected:
  /// A configuration in a file whose name awk would take for an assignment.
  void add(std::string const& text) {
    std::string const name = "lr=" + std::to_string(texts_.size()) + ".cfg";
    try {
      values_.push_back(read_config_file(directory_.write(name, text)));
      texts_.push_back(text);
    } catch (UsageError const&) {
      ++refused_;  // the run ends with that, whatever the scripts have read
    }
  }

  /// The value of each key in each file, as the scripts read it; DEFAULT where there is none.
  [[nodiscard]] std::vector<std::string> read_by_scripts() const {
    std::string script = "source " OFFSTAGE_SCRIPTS "/run_directory.sh; cd " +
                         directory_.path().string() + "; for ((i = 0; i < " +
                         std::to_string(texts_.size()) + "; ++i)); do for key in";
    for (char const* const key : keys) {
      script += std::string{" "} + key;
    }
    script += "; do read_key $key DEFAULT lr=$i.cfg; printf \"%s\\0\" \"$key_value\"; done; done";
    std::string const output = output_of("bash -c '" + script + "'");
    std::vector<std::string> found;
    for (std::size_t begin = 0; begin < output.size(); begin = output.find('\0', begin) + 1) {
      found.push_back(output.substr(begin, output.find('\0', begin) - begin));
    }
    return found;
  }

  void compare() const {
    auto const found = read_by_scripts();
    ASSERT_EQ(found.size(), texts_.size() * keys.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      auto const& values = values_[i / keys.size()];
      auto const key = values.find(keys[i % keys.size()]);
      bool const given = key != values.end() && !key->second.back().value.empty();
      EXPECT_EQ(found[i], given ? key->second.back().value : "DEFAULT")
          << keys[i % keys.size()] << " of:\n"
          << texts_[i / keys.size()];
    }
  }

  TemporaryDirectory directory_;
  std::vector<std::string> texts_;
  std::vector<Values> values_;
  int refused_{};
};

TEST_F(JobScripts, ReadKeysAsTheProgramDoes) {
  for (char const* const text :
       {"",
        "run.dir=a",
        "run.dir = a b \r\n",
        "\r \t[run]\t\r\ndir\t=\t a\t",
        "[run]\ndir = \"a b\"\n",
        "[run]\ndir = 'a' # comment\n",
        "[run] # comment\ndir = a\n",
        "run.dir = a = b\n",
        "[checkpoint]\nresume = none\n[run]\ndir = a\n[checkpoint]\ndir = b\n",
        "[checkpoint]\nresume = none#\n",
        "# [run]\nrun.dir = #\ncheckpoint.resume = # none\n",
        "[tiers]\npath = /a,read=1GB/s\npath = /b\n",
        "[tiers]\npath = /a\npath =\n",
        "tiers.path = /a\n[tiers]\npath=/b",
        "[run]\ndir = \\n\\t$(id)`id`\n",
        "[run]\ndir = -n\n[checkpoint]\nresume = -e\n",
        "[run]\ndir = [a]\n",
        "run.dir=\xc3\xa9\xff\n",
        "run.dir = a\v\f\n",
        ";\nrun.dir = a\n",
        "; c\nrun.dir = a ; b\n[run] ; c\n",
        "[run] ;\ndir = a;b ; c ; d\n[checkpoint]\nresume = ; none\ndir =; x\n",
        "run.dir = ~/a\ncheckpoint.dir = ~\ntiers.path = ~/a,read=1GB/s\n",
        "run.dir = a~/b\ncheckpoint.dir = x,~/y\n",
        "run.dir = a, ~/b,\t~\ncheckpoint.dir = x ,~/y, z\n",
        "run.dir = \" a ; b \" ; c\ncheckpoint.dir = 'it'\n",
        "run.dir = \"\"\ncheckpoint.dir = it's\n",
        "run.dir = '~/a'\n",
        "[run]\n  dir=a\n\n\n[data]\ntrain = [run]\n"}) {
    add(text);
  }
  EXPECT_GE(texts_.size(), 18U);
  compare();
}

TEST_F(JobScripts, ReadKeysAsTheProgramDoesAtRandom) {
  std::array<char const*, 5> const sections{"[run]", "[checkpoint]", "[tiers]", "[data]", ""};
  std::array<char const*, 7> const names{"dir",   "path",           "resume",           "run.dir",
                                         "train", "checkpoint.dir", "checkpoint.resume"};
  std::array<char const*, 12> const values{"a",     "none", "",        "x=y", "'q'", "a  b",
                                           "[run]", "a\\",  "\"q r\"", "~/a", "a;b", "a,~/b"};
  std::array<char const*, 6> const blanks{"", "", " ", "\t", "\r", " \t "};
  std::array<char const*, 7> const comments{"", "", " # b", " #", "#dir = c", " ; d", "\t;"};
  std::minstd_rand random{1};
  auto const one_of = [&](auto const& all) { return std::string{all[random() % all.size()]}; };
  while (texts_.size() < 100) {
    std::string text;
    for (auto line = random() % 5; line > 0; --line) {
      text += one_of(blanks) + one_of(sections) + one_of(blanks) + one_of(comments) + "\n";
      text += one_of(blanks) + one_of(names) + one_of(blanks) + "=" + one_of(blanks) +
              one_of(values) + one_of(blanks) + one_of(comments) + "\n";
    }
    add(text);
  }
  EXPECT_GT(refused_, 0);
  compare();
}

}  // namespace
}  // namespace offstage::cli
