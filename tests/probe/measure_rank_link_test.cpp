#include <gmock/gmock.h>

#include <cstddef>
#include <memory>
#include <span>

#include "base/error.hpp"
#include "device/device.hpp"
#include "platform/mpi/communicator.hpp"
#include "probe/measure.hpp"
#include "state/rank_link.hpp"

namespace offstage::probe {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr Effort quick{.bytes = MiB, .rounds = 2, .least = Seconds{}};

/// A link by MPI that spoils a byte of rank 1's part on rank 0.
class SpoilingLink final : public state::RankLink {
 public:
  SpoilingLink(mpi::Communicator const& comm, state::Route route)
      : RankLink{comm, route}, good_{state::make_mpi_link(comm, route)} {}
  void all_gather(device::Stream& stream, std::span<std::byte> buffer) override {
    good_->all_gather(stream, buffer);
    stream.synchronize();
    if (rank() == 0) {
      buffer[buffer.size() / static_cast<std::size_t>(size()) + 7] = std::byte{};
    }
  }
  void all_to_all(device::Stream& /*stream*/, std::span<std::byte const> /*send*/,
                  std::span<Slice const> /*send_parts*/, std::span<std::byte> /*receive*/,
                  std::span<Slice const> /*receive_parts*/) override {}

 private:
  std::unique_ptr<state::RankLink> good_;
};

TEST(MeasureRankLink, NamesTheFirstByteThatCameWrongOnAllRanks) {
  auto const device = device::make_host_device(0);
  auto const comm = mpi::Communicator::world();
  for (auto const route : {state::Route::staged, state::Route::in_place}) {
    auto const good = state::make_mpi_link(comm, route);
    EXPECT_GT(measure_rank_link(*device, *good, quick), 0.0);
    SpoilingLink spoiling{comm, route};
    EXPECT_THAT(
        [&] { (void)measure_rank_link(*device, spoiling, quick); },
        ThrowsMessage<Error>(HasSubstr("from rank 1 is not what was sent, first at byte 7")));
  }
}

}  // namespace
}  // namespace offstage::probe
