// What ranks send each other message by message, on more ranks than are under way at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::mpi {
namespace {

static_assert(most_pairs < 11, "the exchange between 12 ranks waits for pairs");

std::vector<std::uint8_t> contents(int key, Bytes size) {
  std::vector<std::uint8_t> all(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<std::uint8_t>(key * 31 + static_cast<int>(i % 97));
  }
  return all;
}

/// Rank s sends (s + 1) * 10 * t bytes to rank t, nothing to rank 0; ranks from `active` on are
/// idle and send nothing.
class AllToAll {
 public:
  explicit AllToAll(int active) : active_{active} {
    for (int r = 0; r < comm_.size(); ++r) {
      auto const part = contents(comm_.rank() * 16 + r, size_of(comm_.rank(), r));
      send_parts_.push_back({std::ssize(send_), std::ssize(part)});
      std::ranges::copy(part, std::back_inserter(send_));
      receive_parts_.push_back({received_, size_of(r, comm_.rank())});
      received_ += receive_parts_.back().size;
    }
    receive_.resize(static_cast<std::size_t>(received_));
  }
  template <class... Largest>
  void run(Largest... largest) {
    comm_.all_to_all(std::as_bytes(std::span{send_}), send_parts_,
                     std::as_writable_bytes(std::span{receive_}), receive_parts_, largest...);
    for (int r = 0; r < comm_.size(); ++r) {
      auto const& part = receive_parts_[static_cast<std::size_t>(r)];
      auto const first = receive_.begin() + part.offset;
      EXPECT_EQ(std::vector<std::uint8_t>(first, first + part.size),
                contents(r * 16 + comm_.rank(), part.size))
          << "from rank " << r;
    }
  }
  [[nodiscard]] int ranks() const { return comm_.size(); }

 private:
  [[nodiscard]] Bytes size_of(int from, int to) const {
    return from < active_ ? Bytes{10} * (from + 1) * to : 0;
  }

  Communicator comm_ = Communicator::world();
  int active_;
  std::vector<std::uint8_t> send_;
  std::vector<std::uint8_t> receive_;
  Bytes received_ = 0;
  std::vector<Slice> send_parts_;
  std::vector<Slice> receive_parts_;
};

// With 12 ranks there are more pairs than may be under way.
TEST(Exchange, AllToAllBringsEveryPairsBytesAndTakesEmptyParts) {
  for (int const idle : {0, 1, 7}) {
    AllToAll exchange{std::max(1, Communicator::world().size() - idle)};
    exchange.run();
  }
}

TEST(Exchange, AllToAllOfSmallPartsBringsTheSameThroughOtherRanks) {
  for (int const idle : {0, 1, 7}) {
    AllToAll exchange{std::max(1, Communicator::world().size() - idle)};
    Bytes const largest = Bytes{10} * exchange.ranks() * exchange.ranks();
    exchange.run(largest);
    exchange.run(small_part + 1);  // pairwise
  }
}

TEST(Exchange, AllToAllRefusesAPartThatIsLargerThanTold) {
  auto const comm = Communicator::world();
  if (comm.size() > 2) {
    std::vector<Slice> const parts(static_cast<std::size_t>(comm.size()), Slice{0, 8});
    std::vector<std::byte> bytes(8);
    EXPECT_THROW(comm.all_to_all(bytes, parts, bytes, parts, 7), PreconditionError);
  }
}

// Merged in rank order, whatever the number of ranks; ranks with nothing take part.
TEST(Exchange, FoldBringsAllValuesToTheFirstRankInRankOrder) {
  auto const comm = Communicator::world();
  std::vector<int> const mine(static_cast<std::size_t>(comm.rank() % 3), comm.rank());
  auto const all = comm.fold(mine, [](std::vector<int>& before, std::span<int const> behind) {
    before.insert(before.end(), behind.begin(), behind.end());
  });
  std::vector<int> expected;
  for (int r = 0; comm.rank() == 0 && r < comm.size(); ++r) {
    expected.insert(expected.end(), static_cast<std::size_t>(r % 3), r);
  }
  EXPECT_EQ(all, expected);
}

}  // namespace
}  // namespace offstage::mpi
