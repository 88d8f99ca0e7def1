#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.hpp"
#include "cli/options.hpp"
#include "temporary_directory.hpp"

namespace offstage::cli {

/// A directory of config files, and shorthands to parse with them.
class OptionsFixture : public ::testing::Test {
 protected:
  [[nodiscard]] std::string file(std::string const& name, std::string const& text) const {
    return directory_.write(name, text);
  }

  /// All that is required, and `more` behind it.
  static std::vector<std::string> complete(std::vector<std::string> const& more = {}) {
    std::vector<std::string> all{"--run.dir=run",      "--model.family=llama", "--model.layers=2",
                                 "--model.hidden=64",  "--model.heads=4",      "--model.vocab=256",
                                 "--data.train=a.txt", "--train.steps=10"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  static config::RunConfig parse(std::vector<std::string> const& more = {}) {
    return parse_train_options(complete(more));
  }

  /// The one line that parsing ends with.
  static std::string error_of(std::vector<std::string> const& arguments) {
    try {
      static_cast<void>(parse_train_options(arguments));
    } catch (UsageError const& error) {
      EXPECT_EQ(std::string{error.what()}.find('\n'), std::string::npos);
      return error.what();
    }
    return "no error";
  }
  static std::string error(std::vector<std::string> const& more) {
    return error_of(complete(more));
  }

  static config::Setting setting(config::RunConfig const& config, std::string const& key) {
    for (config::Setting const& each : config.settings) {
      if (each.key == key) {
        return each;
      }
    }
    return {};
  }

  TemporaryDirectory directory_;
};

}  // namespace offstage::cli
