#include "train/memory/device_demand.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "device/wrapped_device.hpp"
#include "kernels/attention/attention.hpp"
#include "model/transformer.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/link_support.hpp"
#include "train/step/step_runner.hpp"

namespace offstage::train {
namespace {

constexpr device::Emulation link{.host_to_device = 1e10, .device_to_host = 1e10};

/// Activations beside which the chunks of the update are small, behind a link.
config::RunConfig small() {
  config::RunConfig config;
  config.model = {.layers = 2,
                  .hidden = 32,
                  .heads = 4,
                  .kv_heads = 2,
                  .ffn_hidden = 64,
                  .vocab = 256,
                  .max_sequence = 64};
  config.train.sequence = 64;
  config.train.micro_batch = 16;
  config.train.global_batch = 32;
  config.numerics.dtype = DType::bf16;
  config.numerics.accumulate_fp32 = true;
  config.subgroup_size = 8192;
  config.share.device_chunk = 4096;
  config.share.device_share = 0.5;
  config.device.emulation = link;
  return config;
}

/// What a run is said to take of this rank's device, and what it has taken.
struct Both {
  DeviceDemand planned;
  Bytes taken{};
};

Both both(config::RunConfig const& config, state::LinkKind kind = state::LinkKind::usual) {
  auto const comm = mpi::Communicator::world();
  auto made = device::make_host_device(config.device.memory, config.device.emulation);
  auto between = state::make_link(kind, comm, made->host_visible());
  Room const room{.route = between->route(), .device_memory = config.device.memory};
  StepRunner<bfloat16> const runner{config, comm, std::move(made), std::move(between),
                                    [](launch::Needs const&) {}};
  return {device_demand(config, runner.map(), comm.rank(), room,
                        runner.memory_plan().subgroup_elements),
          runner.device().peak()};
}

/// Memory that the rank that owns most has, as others do.
Bytes of_fullest(Bytes memory) {
  return mpi::Communicator::world().broadcast_value(memory, state::fullest_rank);
}

void expect_right(config::RunConfig const& config, std::string const& what) {
  auto const [planned, taken] = both(config);
  EXPECT_EQ(planned.total(), taken) << what;
}

/// Where all activations stay on a device that has room for little else, gradients find none and
/// slots are lent, which no update under backward may have; what leaves or is computed again gives
/// either its own memory.
TEST(DeviceDemand, OfActivationsThatDoNotStayIsRoomForGradientsAndSlots) {
  auto config = small();
  config.model.layers = 8;
  auto const planned = [&](char const* policy, Bytes memory) {
    config.train.activations = activations::parse_policy(policy);
    config.device.memory = memory;
    auto const [demand, taken] = both(config);
    EXPECT_EQ(demand.total(), taken) << policy;
    return demand;
  };
  auto const roomy = planned("keep", 0);
  ASSERT_GT(roomy.chunk_buffers, 0);
  ASSERT_GT(roomy.held, 0);
  Bytes const limit = of_fullest(roomy.total() - roomy.chunk_buffers - roomy.held);
  auto const kept = planned("keep", limit);
  if (mpi::Communicator::world().rank() == state::fullest_rank) {
    EXPECT_EQ(kept.held, 0);
    EXPECT_LT(kept.chunk_buffers, roomy.chunk_buffers);
  }
  for (char const* policy : {"recompute", "host", "0", "0.5"}) {
    auto const swapped = planned(policy, limit);
    EXPECT_EQ(swapped.held, roomy.held) << policy;
    EXPECT_EQ(swapped.chunk_buffers, roomy.chunk_buffers) << policy;
    EXPECT_LT(swapped.total(), limit) << policy;
  }
}

TEST(DeviceDemand, IsWhatARunTakes) {
  for (auto const& emulation : {device::Emulation{}, link}) {
    for (double const share : {0.0, 0.5}) {
      for (double const resident : {0.0, 0.3, 1.0}) {
        auto config = small();
        config.device.emulation = emulation;
        config.share.device_share = share;
        config.share.device_resident = resident;
        expect_right(config, fmt::format("share {}, resident {}, link {}", share, resident,
                                         emulation.any()));
      }
    }
  }
}

TEST(DeviceDemand, OfAVerticalScheduleIsWhatARunTakes) {
  auto config = small();
  config.train.together = (2 + mpi::Communicator::world().size() - 1) /
                          mpi::Communicator::world().size();  // of the two of a step
  for (char const* policy : {"recompute", "0"}) {
    config.train.activations = activations::parse_policy(policy);
    expect_right(config, policy);
  }
  config.train.global_batch = 192;
  config.train.together = 12 / mpi::Communicator::world().size();
  config.model.tied_head = true;
  auto const of = [&config](plan::StayingTensors const& staying) {
    config.train.staying = staying;
    expect_right(config, fmt::format("{} tensors stay", staying.tensors));
    return both(config).planned.model;
  };
  Bytes const tensor = 16 * 64 * 32 * 2;
  Bytes const none = of({});
  EXPECT_EQ(of({.tensors = 3}) - none, 3 * tensor);
  EXPECT_GT(of({.tensors = 3, .tables = true}) - none, 3 * tensor);
}

TEST(DeviceDemand, CountsSlicesThatRanksPassFromDeviceToDevice) {
  for (auto const home : {parameters::Home::device, parameters::Home::host}) {
    auto config = small();
    config.parameter_home = home;
    auto const [planned, taken] = both(config, state::LinkKind::direct);
    EXPECT_EQ(planned.total(), taken);
  }
}

/// Layers of a block of 4 C^2 and 8 C^2 parameters.
config::RunConfig of_gpt2() {
  auto config = small();
  config.model.family = state::Family::gpt2;
  config.model.layers = 3;
  config.model.hidden = 64;
  config.model.kv_heads = 4;
  config.model.ffn_hidden = 256;
  config.model.vocab = 128;
  config.model.tied_head = true;
  config.train.micro_batch = 1;
  config.train.global_batch = 3;
  return config;
}

/// Padded for equal parts, in bf16, of the MLP: 2 * 64 * 256 weights are 8 chunks, a norm and
/// biases a part of one.
Bytes mlp_bytes_of(int ranks) {
  return 2 * round_up(9, ranks) * 4096;
}

// The embedding, of 3 chunks, goes through the same slots.
TEST(DeviceDemand, OfParametersAndGradientsIsThatOfABlocksLargerLayerNotOfTheBlock) {
  auto config = of_gpt2();
  config.share.device_share = 0.0;
  config.train.activations = {activations::Policy::Rule::recompute};
  for (auto const home : {parameters::Home::host, parameters::Home::device}) {
    config.parameter_home = home;
    config.device.memory = 0;
    auto const roomy = both(config).planned;
    expect_right(config, "without a limit");
    state::ShardMap const map{state::layers_of(config.model), mpi::Communicator::world().size()};
    bool const on_device = home == parameters::Home::device;
    Bytes const shard =
        on_device ? 2 * map.shard_elements(mpi::Communicator::world().rank()) : Bytes{0};
    bool const slots = !on_device || map.ranks() > 1;
    Bytes const mlp_bytes = mlp_bytes_of(map.ranks());
    EXPECT_EQ(roomy.working_copy, shard + (slots ? (on_device ? 3 : 4) * mlp_bytes : 0));
    config.device.memory = of_fullest(roomy.total() - roomy.held - (slots ? mlp_bytes : 0));
    auto const tight = both(config).planned;
    EXPECT_LE(tight.total(), config.device.memory);
    EXPECT_EQ(tight.working_copy, roomy.working_copy - (slots ? mlp_bytes : 0));
    expect_right(config, "within a limit");
    if (on_device) {
      config.train.activations = {activations::Policy::Rule::keep};
      config.device.memory = 0;
      EXPECT_EQ(both(config).planned.working_copy, shard + (slots ? 2 * mlp_bytes : 0))
          << "one layer is held at a time";
      config.train.activations = {activations::Policy::Rule::recompute};
    }
  }
  // The smallest device that holds a run: two slots, two gradients.
  config.parameter_home = parameters::Home::host;
  auto const least = device_demand(config, state::ShardMap{state::layers_of(config.model), 1}, 0,
                                   {.route = state::Route::staged, .device_memory = 1}, 8192);
  EXPECT_EQ(least.working_copy, 2 * mlp_bytes_of(1));
}

TEST(DeviceDemand, AttentionsGradientHasABufferOfItsOwnWhereTheRunFitsBesideIt) {
  auto config = small();
  state::ShardMap const map{state::layers_of(config.model), mpi::Communicator::world().size()};
  auto const roomy = both(config).planned;
  ASSERT_EQ(roomy.attention_buffer, map.ranks() > 1);
  auto const planned = [&](Bytes memory) {
    config.device.memory = memory;
    auto const [demand, taken] = both(config);
    EXPECT_EQ(demand.total(), taken);
    EXPECT_LE(taken, memory);
    EXPECT_EQ(demand.lacks_attention_buffer, map.ranks() > 1 && !demand.attention_buffer);
    return demand;
  };
  Bytes const least =
      device_demand(config, map, state::fullest_rank,
                    {.route = state::Route::staged, .device_memory = 1}, config.subgroup_size)
          .total();
  auto const tight = planned(least);
  EXPECT_FALSE(tight.attention_buffer);
  Bytes const buffer = roomy.model - tight.model;
  EXPECT_EQ(buffer > 0, map.ranks() > 1);
  EXPECT_EQ(planned(least + buffer).model, roomy.model);
  EXPECT_FALSE(planned(least + std::max<Bytes>(0, buffer - 1)).attention_buffer);
}

TEST(DeviceDemand, CountsNoSlotsWhereDeviceMemoryIsTheHostsUnlessTheyAreAskedFor) {
  auto config = small();
  config.device.emulation = {};
  config.share.device_share.reset();
  EXPECT_EQ(both(config).planned.chunk_buffers, 0);
  EXPECT_EQ(both(config).planned.gradient, 0);
  expect_right(config, "as the share of cores is chosen");
  config.device.emulation.device_update = 1e9;
  expect_right(config, "as the share of slow kernels is chosen");
}

TEST(DeviceDemand, CountsSmallSubgroupsAndRecomputation) {
  auto config = small();
  config.subgroup_size = 1;
  expect_right(config, "subgroups of a chunk");
  config.train.activations = {activations::Policy::Rule::recompute};
  config.model.tied_head = true;
  expect_right(config, "recomputation and a tied head");
}

/// Says that it is a GPU.
class NamedCuda final : public device::WrappedDevice {
 public:
  NamedCuda() : WrappedDevice{device::make_host_device(0)} {}
  [[nodiscard]] device::Kind kind() const noexcept override { return device::Kind::cuda; }
};

Bytes of_the_model(config::RunConfig const& config) {
  state::ShardMap const map{state::layers_of(config.model), 1};
  return device_demand(config, map, 0, {.route = state::Route::staged}, config.subgroup_size).model;
}

/// And a model takes it.
void expect_taken_on_a_gpu(config::RunConfig const& config) {
  NamedCuda device;
  auto const stream = device.make_calling_stream("model");
  model::Transformer<bfloat16> const model{
      config.model, {config.train.micro_batch, config.train.sequence}, device, *stream};
  EXPECT_EQ(device.used(), of_the_model(config));
}

// The head's memory is more than that of the blocks, in which it lies.
TEST(DeviceDemand, CountsTheLogitsOfMoreRowsOnAGpu) {
  auto config = small();
  config.model.vocab = 259;  // rows of 320
  Bytes const on_host = of_the_model(config);
  config.device.kind = config::DeviceKind::cuda;
  std::int64_t const rows = config.train.micro_batch * config.train.sequence;
  // On the host there are tiles of 256 rows. The sum over them lies in memory of gradients.
  EXPECT_EQ(of_the_model(config) - on_host, (rows - 256) * 320 * (4 + 2));
  expect_taken_on_a_gpu(config);
}

TEST(DeviceDemand, CountsWhatAttentionsBackwardNeedsOnAGpu) {
  auto config = small();
  config.model.hidden = 64;
  config.model.heads = 8;
  config.model.kv_heads = 4;
  config.model.vocab = 8;
  Bytes const on_host = of_the_model(config);
  config.device.kind = config::DeviceKind::cuda;
  std::int64_t const rows = config.train.micro_batch * config.train.sequence;
  // Heads are small here: their sums take more than what they share memory with, (rows, 64) and
  // (rows, 64) of 2 bytes.
  Bytes const attention =
      kernels::attention_workspace<bfloat16>({.batch = config.train.micro_batch,
                                              .sequence = config.train.sequence,
                                              .heads = config.model.heads,
                                              .kv_heads = config.model.kv_heads,
                                              .head_dim = config.model.head_dim()});
  Bytes const shared = rows * (64 + 64) * 2;
  EXPECT_GT(attention, shared);
  EXPECT_EQ(of_the_model(config) - on_host, attention - shared);
  expect_taken_on_a_gpu(config);
  // cuDNN's workspace is in the place of the own kernels'.
  Bytes const by_own = of_the_model(config);
  config.device.attention_workspace = attention + MiB;
  EXPECT_EQ(of_the_model(config), by_own + MiB);
}

TEST(DeviceDemand, SlotsThatTheDeviceHasNoRoomForAreLent) {
  auto config = small();
  config.share.device_resident = 0.25;
  config.share.device_gradients = 0;
  auto const roomy = both(config).planned;
  ASSERT_GT(roomy.chunk_buffers, 0);
  config.device.memory = roomy.total();
  EXPECT_EQ(both(config).planned.chunk_buffers, roomy.chunk_buffers);
  config.device.memory = roomy.total() - 1;
  auto const [planned, taken] = both(config);
  EXPECT_LT(planned.chunk_buffers, roomy.chunk_buffers);
  EXPECT_EQ(planned.total(), taken);
  EXPECT_LE(taken, config.device.memory);
}

// Activations' memory is not idle under backward.
TEST(DeviceDemand, AnUpdateThatHasToBeginUnderBackwardNeedsASlotOfItsOwn) {
  auto config = small();
  config.train.activations = activations::parse_policy("keep");
  config.share.device_gradients = 0;
  state::ShardMap const map{state::layers_of(config.model), mpi::Communicator::world().size()};
  auto const demand = [&](Bytes limit) {
    Room const room{.route = state::Route::staged, .device_memory = limit};
    return device_demand(config, map, 0, room, config.subgroup_size);
  };
  auto const roomy = demand(0);
  Bytes const limit = roomy.total() - roomy.chunk_buffers;
  auto const lent = demand(limit);
  EXPECT_TRUE(lent.buffers_are_lent);
  EXPECT_NO_THROW(require_room(lent, config, limit));
  config.overlap = config::Switch::on;
  EXPECT_FALSE(demand(roomy.total()).buffers_are_lent);
  auto const none = demand(limit);
  EXPECT_FALSE(none.buffers_are_lent);
  try {
    require_room(none, config, limit);
    ADD_FAILURE() << "it has no slot";
  } catch (UsageError const& error) {
    EXPECT_NE(std::string{error.what()}.find("set update.overlap=auto"), std::string::npos)
        << error.what();
  }
  config.device.memory = limit + roomy.chunk_buffers / 4;
  EXPECT_EQ(demand(config.device.memory).chunk_buffers, roomy.chunk_buffers / 4);
  expect_right(config, "a slot of its own");
}

TEST(DeviceDemand, GradientsTakeWhatIsLeftOfDeviceMemory) {
  auto config = small();
  auto const all = both(config).planned;
  ASSERT_GT(all.held, 0);
  for (Bytes const less : {Bytes{1}, all.held / 2, all.held - 1, all.held}) {
    config.device.memory = all.total() - less;
    auto const [planned, taken] = both(config);
    EXPECT_EQ(planned.total(), taken) << less;
    EXPECT_LE(taken, config.device.memory) << less;
    EXPECT_EQ(planned.chunk_buffers, all.chunk_buffers) << less;
  }
  config.share.device_gradients = 4096;
  config.device.memory = 0;
  expect_right(config, "as much as was asked for");
}

/// Every device with at least `least` bytes has room, and a run keeps within it.
void expect_room_from_least_on(config::RunConfig config, std::string const& what) {
  auto const comm = mpi::Communicator::world();
  state::ShardMap const map{state::layers_of(config.model), comm.size()};
  auto const needed = [&](Bytes limit) {
    Room const room{.route = state::Route::staged, .device_memory = limit};
    return device_demand(config, map, state::fullest_rank, room, config.subgroup_size).total();
  };
  Bytes const most = needed(0);
  Bytes const step = most / 300;
  Bytes least = most;
  while (needed(least - step) <= least - step) {
    least -= step;
  }
  ASSERT_LT(least, most) << what;
  for (Bytes limit = least - 64 * step; limit < least; limit += step) {
    EXPECT_GT(needed(limit), limit) << what << ", although " << least << " suffice";
  }
  for (Bytes limit = least; limit < most; limit += 7 * step) {
    config.device.memory = limit;
    EXPECT_LE(both(config).taken, limit) << what;
  }
}

TEST(DeviceDemand, MoreMemoryIsNeverRefusedAndSuffices) {
  auto config = of_gpt2();
  config.subgroup_size = 4096;
  config.optimizer.moments = kernels::Moments::int8;  // each subgroup pads its scales
  config.share.device_resident = 0.6;
  config.train.activations = {activations::Policy::Rule::recompute};
  for (auto const home : {parameters::Home::device, parameters::Home::host}) {
    for (std::optional<Bytes> const gradients : {std::optional<Bytes>{}, {64 * KiB}}) {
      config.parameter_home = home;
      config.share.device_gradients = gradients;
      expect_room_from_least_on(
          config, fmt::format("parameters {}, gradients {}",
                              home == parameters::Home::device ? "there" : "in host memory",
                              gradients.value_or(-1)));
    }
  }
}

TEST(DeviceDemand, GradientsThatAreAskedForHaveRoomBeforeLayersThatAreAheadOfUse) {
  auto config = of_gpt2();
  config.parameter_home = parameters::Home::host;
  config.share.device_gradients = 64 * KiB;
  auto const roomy = both(config).planned;
  ASSERT_GT(roomy.held, 64 * KiB);
  config.device.memory = roomy.total() - 1;
  auto const [planned, taken] = both(config);
  EXPECT_LT(planned.working_copy, roomy.working_copy);
  EXPECT_EQ(planned.held, roomy.held);
  EXPECT_EQ(planned.total(), taken);
}

// Of one rank, and where ranks pass slices from device to device.
TEST(DeviceDemand, GradientsThatTheCoresUpdateAreSummedThereToo) {
  auto config = small();
  auto const comm = mpi::Communicator::world();
  for (double const share : {0.0, 0.5, 1.0}) {
    config.share.device_share = share;
    auto const planned = both(config, state::LinkKind::direct).planned;
    state::ShardMap const map{state::layers_of(config.model), comm.size()};
    std::int64_t const shard = map.shard_elements(comm.rank());
    EXPECT_EQ(planned.held, shard * Bytes{sizeof(float)} + update::HeldGradients::norm_bytes(shard))
        << share;
  }
  config.storage.flush_fp32 = true;
  config.paths.resize(1);
  state::ShardMap const map{state::layers_of(config.model), 1};
  EXPECT_EQ(
      device_demand(config, map, 0, {.route = state::Route::staged}, config.subgroup_size).held, 0)
      << "what is flushed goes by the host";
}

}  // namespace
}  // namespace offstage::train
