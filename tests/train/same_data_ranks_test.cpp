#include <gmock/gmock.h>

#include <string>

#include "temporary_directory.hpp"
#include "train/run/same_data.hpp"

namespace offstage::train {
namespace {

using testing::HasSubstr;

/// A dataset of one text whose windows are `windows`.
data::Dataset dataset(TemporaryDirectory const& folder, int windows) {
  std::string const text(static_cast<std::size_t>(3 * windows + 1), 'x');
  return {{{folder.write("a.txt", text)}}, {.key = "data.train", .vocab = 256, .sequence = 3}};
}

TEST(SameDataOfRanks, IsAsked) {
  auto const comm = mpi::Communicator::world();
  TemporaryDirectory const folder;
  EXPECT_NO_THROW(require_same_data(dataset(folder, 5), "data.train", comm));
  auto const other = dataset(folder, comm.rank() == comm.size() - 1 ? 4 : 5);
  if (comm.size() == 1) {
    EXPECT_NO_THROW(require_same_data(other, "data.train", comm));
    return;
  }
  try {
    require_same_data(other, "data.train", comm);
    ADD_FAILURE() << "accepted";
  } catch (mpi::AgreedError const& error) {
    EXPECT_EQ(error.failed_rank(), comm.size() - 1);
    EXPECT_THAT(error.what(), HasSubstr("data.train: has 4 windows here, and 5 on rank 0"));
  }
}

}  // namespace
}  // namespace offstage::train
