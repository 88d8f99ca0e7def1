#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "temporary_directory.hpp"
#include "train/run/same_data.hpp"

namespace offstage::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A text that has so many windows.
data::Dataset dataset(TemporaryDirectory const& folder, int windows, char of = 'x') {
  std::string const text(static_cast<std::size_t>(3 * windows + 1), of);
  return data::Dataset{{{folder.write("a.txt", text)}},
                       {.key = "data.train", .vocab = 256, .sequence = 3}};
}

std::vector<data::FileFacts> files(TemporaryDirectory const& folder, int windows) {
  return dataset(folder, windows).files();
}

TEST(SameDataOfRanks, HasItsSamplesFromTheFirstRankOfTheNode) {
  auto const comm = mpi::Communicator::world();
  TemporaryDirectory const folder;
  auto const mine = dataset(folder, 5, static_cast<char>('a' + comm.rank()));
  auto const found = files_of(mine, comm);
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].checksum, comm.broadcast_value(mine.files()[0].checksum, 0));
  EXPECT_EQ(found[0].tokens, 16);
  EXPECT_EQ(mine.files(data::Samples::left_out)[0].checksum, 0);
}

TEST(SameDataOfRanks, IsAsked) {
  auto const comm = mpi::Communicator::world();
  TemporaryDirectory const folder;
  EXPECT_NO_THROW(require_same_data("data.train", files(folder, 5), comm));
  auto const other = files(folder, comm.rank() == comm.size() - 1 ? 4 : 5);
  if (comm.size() == 1) {
    EXPECT_NO_THROW(require_same_data("data.train", other, comm));
    return;
  }
  try {
    require_same_data("data.train", other, comm);
    ADD_FAILURE() << "accepted";
  } catch (mpi::AgreedError const& error) {
    EXPECT_EQ(error.failed_rank(), comm.size() - 1);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("data.train on node "), HasSubstr("a.txt: 13 tokens, 4 windows"),
                      HasSubstr("here, but 16 tokens, 5 windows")));
  }
}

}  // namespace
}  // namespace offstage::train
