// Files from rank to rank, on 2 and 3 ranks.
#include "checkpoint/file_exchange.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/thread.hpp"
#include "base/watch.hpp"
#include "platform/failing_calls.hpp"
#include "platform/mpi/communicator.hpp"
#include "platform/scratch_directory.hpp"

namespace offstage::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t pieces = 5;
constexpr Bytes piece_bytes = 4 * MiB;
constexpr Seconds long_ago{0.4};

/// False if it has not come true after half a minute.
template <class Holds>
bool comes_true(Holds&& holds) {
  for (int looks = 0; looks < 30'000; ++looks) {
    if (holds()) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  return false;
}

TEST(FileExchange, ARankThatWaitsMakesProgressAsLongAsAnotherDoes) {
  mpi::Communicator const world = mpi::Communicator::world();
  mpi::Communicator const self = mpi::Communicator::self();
  auto const scratch = world.rank() == 0 ? std::make_unique<ScratchDirectory>() : nullptr;
  std::string const directory = world.broadcast(scratch ? *scratch / "" : std::string{}, 0);
  auto const gate = [&](std::int64_t piece) { return directory + "gate-" + std::to_string(piece); };
  std::vector<SentFile> files;
  if (world.rank() == 0) {
    std::ofstream{directory + "large"};
    fs::resize_file(directory + "large", pieces * piece_bytes);
    files.push_back({directory + "large", "copy", 0});
  }
  int named_early = 0;
  // Rank 0 reads a piece once the last rank, which has nothing to move, has opened its gate.
  FailingCalls const calls{
      {.kinds = Call::read, .times = 0, .name = "large", .before = [&](std::int64_t piece) {
         (void)comes_true([&] { return fs::exists(gate(piece)); });
         named_early += fs::exists(directory + "copy") ? 1 : 0;
       }}};
  std::int64_t hung = 0;
  std::int64_t went_on = 0;
  NamedThread keeper{"keeper", [&] {
                       for (std::int64_t piece = 1; piece <= pieces; ++piece) {
                         if (world.rank() == world.size() - 1) {
                           hung += comes_true([] { return since_progress() > long_ago; }) ? 1 : 0;
                           std::ofstream{gate(piece)};
                           went_on +=
                               comes_true([] { return since_progress() < long_ago; }) ? 1 : 0;
                         }
                       }
                     }};
  FileExchange exchange{files, directory, world, self};
  exchange.finish();
  keeper.join();
  if (world.rank() == world.size() - 1) {
    EXPECT_EQ(hung, pieces) << "without a piece there is no progress";
    EXPECT_EQ(went_on, pieces);
  }
  if (world.rank() == 0) {
    EXPECT_EQ(named_early, 0) << "a file that has not come whole does not look so";
    EXPECT_EQ(fs::file_size(directory + "copy"), pieces * piece_bytes);
    EXPECT_FALSE(fs::exists(directory + "copy.tmp"));
  }
  world.barrier();
}

TEST(FileExchange, AFileOfSeveralPiecesComesAsItWas) {
  mpi::Communicator const world = mpi::Communicator::world();
  mpi::Communicator const self = mpi::Communicator::self();
  ScratchDirectory const scratch;
  std::string const text = std::string(piece_bytes, 'a') + std::string(piece_bytes, 'b') + "c";
  std::ofstream{scratch / "large"} << text;
  FileExchange exchange{{{scratch / "large", "copy", world.rank()}}, scratch / "", world, self};
  exchange.finish();
  std::ifstream copy{scratch / "copy"};
  EXPECT_TRUE((std::string{std::istreambuf_iterator<char>{copy}, {}} == text));
}

TEST(FileExchange, AFileCountsOnceItIsSynced) {
  mpi::Communicator const world = mpi::Communicator::world();
  mpi::Communicator const self = mpi::Communicator::self();
  ScratchDirectory const scratch;
  std::ofstream{scratch / "small"} << "some";
  FailingCalls const calls{{.kinds = Call::sync, .error_number = EIO, .name = "/copy"}};
  FileExchange exchange{{{scratch / "small", "copy", world.rank()}}, scratch / "", world, self};
  EXPECT_THROW(exchange.finish(), mpi::AgreedError);
}

}  // namespace
}  // namespace offstage::checkpoint
