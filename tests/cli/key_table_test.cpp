#include "config/key_table.hpp"

#include <gmock/gmock.h>

#include <set>

#include "cli/options.hpp"

namespace offstage::cli {
namespace {

using ::testing::HasSubstr;

TEST(KeyTable, NamesAreUniqueAndHaveOneSection) {
  std::set<std::string_view> names;
  for (config::Key const& key : config::key_table()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_EQ(std::ranges::count(key.name, '.'), 1) << key.name;
    EXPECT_EQ(key.name.find('_'), std::string_view::npos) << key.name;
  }
}

TEST(KeyTable, KeysOfOneSectionStandTogether) {
  std::set<std::string_view> seen;
  std::string_view section;
  for (config::Key const& key : config::key_table()) {
    auto const now = key.name.substr(0, key.name.find('.'));
    if (now != section) {
      EXPECT_TRUE(seen.insert(now).second) << now;
    }
    section = now;
  }
}

TEST(KeyTable, DefaultsCanBeRead) {
  config::RunConfig config;
  for (config::Key const& key : config::key_table()) {
    if (key.fallback && key.derive == nullptr) {
      EXPECT_NO_THROW(key.set(config, std::string{*key.fallback})) << key.name;
    }
  }
}

TEST(KeyTable, OnlyTheKeysOfTheDesignAreRequired) {
  std::set<std::string_view> required;
  for (config::Key const& key : config::key_table()) {
    if (key.required()) {
      required.insert(key.name);
    }
  }
  EXPECT_EQ(required, (std::set<std::string_view>{"model.family", "model.layers", "model.hidden",
                                                  "model.heads", "model.vocab", "train.steps",
                                                  "data.train", "run.dir"}));
}

TEST(KeyTable, FindsByNameAlone) {
  ASSERT_NE(config::find_key("train.steps"), nullptr);
  EXPECT_EQ(config::find_key("train.steps")->name, "train.steps");
  EXPECT_EQ(config::find_key("train.step"), nullptr);
  EXPECT_EQ(config::find_key(""), nullptr);
}

TEST(KeyTable, TheHelpShowsEveryKeyWithItsDefault) {
  auto const help = train_help();
  for (config::Key const& key : config::key_table()) {
    EXPECT_THAT(help, HasSubstr("--" + std::string{key.name} + " "));
  }
  EXPECT_THAT(help, HasSubstr("[100M]"));
  EXPECT_THAT(help, HasSubstr("(required)"));
}

}  // namespace
}  // namespace offstage::cli
