#include "train/saves/checkpoint_space.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"

namespace offstage::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

config::RunConfig with_path(bool persistent) {
  config::RunConfig config;
  config.checkpoint.dir = "/somewhere";
  config.checkpoint.keep = 2;
  tiers::PathSettings path;
  path.persistent = persistent;
  config.paths = {path};
  return config;
}

TEST(SpaceToCome, IsAWarningForCopiesButRefusedForAPersistentPath) {
  EXPECT_NO_THROW(look_at_space(with_path(true), 3, 100 * MiB, 300 * MiB));
  EXPECT_NO_THROW(look_at_space(with_path(false), 3, 100 * MiB, 299 * MiB));
  try {
    look_at_space(with_path(true), 3, 100 * MiB, 299 * MiB);
    FAIL() << "no error";
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("checkpoint.dir=/somewhere"), HasSubstr("3 more"),
                                    HasSubstr("checkpoint.keep=2"), HasSubstr("persistent")));
  }
}

}  // namespace
}  // namespace offstage::train
