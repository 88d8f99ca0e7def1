#include "parameters/node_home.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "device/shuffled_device.hpp"
#include "parameters/parameter_support.hpp"
#include "update/deadline.hpp"

namespace offstage::parameters {
namespace {

using namespace std::chrono_literals;
using update::Deadline;

/// One node, a node for each rank, two ranks on each, and all but one on the first.
std::vector<std::function<int(int)>> divisions() {
  int const last = mpi::Communicator::world().size() - 1;
  return {[](int) { return 0; }, [](int rank) { return rank; }, [](int rank) { return rank / 2; },
          [last](int rank) { return rank == last ? 1 : 0; }};
}

/// Three steps of two micro-batches. Updates begin when no rank uses parameters any more, and go on
/// under the next step.
template <class T, class Use>
void train(mpi::Communicator const& comm, std::vector<state::Subgroup> const& subgroups,
           WorkingParameters<T>& parameters, std::vector<int> const& micro_batch,
           std::function<void(state::Subgroup const&, int)> const& update, Use const& use) {
  state::Readiness readiness{subgroups};
  parameters.set_readiness(&readiness);
  for (int step = 0; step < 3; ++step) {
    std::future<void> updates;
    if (step > 0) {
      comm.barrier();
      readiness.begin();
      updates = std::async(std::launch::async, [&] {
        for (auto const& subgroup : subgroups) {
          std::this_thread::sleep_for(std::chrono::microseconds{100 * comm.rank()});
          update(subgroup, step);
          readiness.done(subgroup.index);
        }
      });
    }
    parameters.begin();
    parameters.expect(micro_batch);
    parameters.expect(micro_batch);
    use(step);
    use(step);
    if (updates.valid()) {
      updates.get();
    }
  }
  parameters.stop();
  parameters.set_readiness(nullptr);
}

template <class T>
class NodeHomeOf : public testing::Test {};
using AllElements = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(NodeHomeOf, AllElements);

TYPED_TEST(NodeHomeOf, GivesADeviceEveryLayerAsTheLastUpdateLeftIt) {
  std::uint64_t seed = 0;
  for (auto const& node : divisions()) {
    for (int const slots : {2, 4}) {
      for (bool const tied : {false, true}) {
        Deadline const deadline{60s, "parameters of a node"};
        device::ShuffledDevice device{++seed, 0, 200us};
        Parameters<TypeParam> parameters{
            device, {.home = Home::node, .slots = slots, .large = !tied, .node = node}};
        auto const& forward = tied ? tied_forward : forward_layers;
        auto const& backward = tied ? tied_backward : backward_layers;
        std::vector<int> micro_batch{forward};
        micro_batch.insert(micro_batch.end(), backward.begin(), backward.end());
        train<TypeParam>(
            parameters.comm, parameters.subgroups, *parameters, micro_batch,
            [&](auto const& subgroup, int step) { parameters.update(subgroup, step); },
            [&](int step) {
              parameters.use(forward, step, tied ? head : -1);
              parameters.use(backward, step, tied ? head : -1);
            });
      }
    }
  }
}

TYPED_TEST(NodeHomeOf, LetsCoresUseLayersWhereTheyLie) {
  for (auto const& node : divisions()) {
    Deadline const deadline{60s, "parameters of a node in place"};
    auto const comm = mpi::Communicator::world();
    state::ShardMap const map{
        layers_with({5 * 4096, 10, 7 * 4096 - 3, 4 * 4096, 9 * 4096, 2 * 4096}), comm.size()};
    auto const subgroups = state::subgroups_of(map, comm.rank(), 3 * chunk_elements);
    auto const device = device::make_host_device(0);
    NodeMemory memory{map, comm, on_node(comm, node(comm.rank())),
                      static_cast<Bytes>(sizeof(TypeParam))};
    NodeParameters<TypeParam> parameters{map, comm.rank(), memory, *device};
    EXPECT_EQ(device->used(), 0);
    auto const update = [&](state::Subgroup const& subgroup, int step) {
      std::vector<float> values;
      for (std::int64_t i = 0; i < subgroup.size; ++i) {
        values.push_back(value_of(comm.rank(), subgroup.begin + i, step));
      }
      parameters.fill(subgroup, values);
    };
    for (auto const& subgroup : subgroups) {
      update(subgroup, 0);
    }
    std::vector<int> micro_batch{forward_layers};
    micro_batch.insert(micro_batch.end(), backward_layers.begin(), backward_layers.end());
    std::vector<TypeParam const*> places(6);
    train<TypeParam>(comm, subgroups, parameters, micro_batch, update, [&](int step) {
      for (int const layer : micro_batch) {
        auto const whole = parameters.acquire(layer);
        auto& place = places[static_cast<std::size_t>(layer)];
        EXPECT_TRUE(place == nullptr || place == whole.data());
        place = whole.data();
        std::size_t at = 0;
        for (int rank = 0; rank < comm.size(); ++rank) {
          std::int64_t const begin = map.shard_offset(layer, rank);
          std::int64_t const end = begin + map.chunks(layer, rank).count * chunk_elements;
          for (std::int64_t i = begin; i < end; ++i, ++at) {
            ASSERT_EQ(static_cast<float>(load(whole[at])), value_of(rank, i, step));
          }
        }
        ASSERT_EQ(at, whole.size());
        parameters.release(layer, nullptr);
      }
    });
    comm.barrier();
  }
}

TEST(NodeHome, TellsWhatAnUpdateFailedWith) {
  auto const comm = mpi::Communicator::self();
  state::ShardMap const map{layers_with({5 * 4096}), 1};
  auto const subgroups = state::subgroups_of(map, 0, 3 * chunk_elements);
  auto const device = device::make_host_device(0);
  NodeMemory memory{map, comm, mpi::Communicator::self(), 2};
  NodeParameters<bfloat16> parameters{map, 0, memory, *device};
  state::Readiness readiness{subgroups};
  parameters.set_readiness(&readiness);
  readiness.begin();
  readiness.fail(std::make_exception_ptr(IoError{"the disk is gone"}));
  parameters.begin();
  EXPECT_THROW((void)parameters.acquire(0), IoError);
  state::Subgroup beyond = subgroups.back();
  beyond.begin += chunk_elements;
  EXPECT_THROW((void)parameters.target(beyond), PreconditionError);
}

TEST(NodeMemory, CountsOnceOnANode) {
  auto const comm = mpi::Communicator::world();
  state::ShardMap const map{layers_with({9 * 4096, 2 * 4096}), comm.size()};
  NodeMemory const memory{map, comm, on_node(comm, 0), 2};
  Bytes const all = 11 * 4096 * 2;
  EXPECT_EQ(std::ssize(memory.whole()), all);
  EXPECT_EQ(comm.sum(memory.counted_again()), comm.size() * all + all - all);
}

TEST(NodeMemory, SaysOnAllRanksWhatTheyCanShare) {
  auto const comm = mpi::Communicator::world();
  Bytes const room = NodeMemory::room(comm, on_node(comm, comm.rank() / 2), 2);
  EXPECT_GT(room, 0);
  EXPECT_EQ(room, comm.broadcast_value(room, 0));
}

TEST(NodeMemory, HasAnEntryForEachPage) {
  Bytes const page = memory::system_page_bytes();
  EXPECT_EQ(NodeMemory::page_table_bytes(3 * page, 2), 6 * 8);
  EXPECT_EQ(NodeMemory::page_table_bytes(3 * page + 1, 2), 7 * 8);
  EXPECT_EQ(NodeMemory::page_table_bytes(0, 2), 0);
}

}  // namespace
}  // namespace offstage::parameters
