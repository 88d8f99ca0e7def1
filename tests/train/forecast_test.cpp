#include "train/forecast/forecast.hpp"

#include <gmock/gmock.h>

#include <tuple>

#include "base/chunk.hpp"
#include "base/dtype.hpp"
#include "base/error.hpp"
#include "kernels/attention/attention.hpp"
#include "platform/cudnn/library.hpp"
#include "state/shard.hpp"
#include "train/memory/activation_demand.hpp"
#include "train/memory/memory_demand.hpp"

namespace offstage::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// 34,976 parameters on a machine whose rates are round: the CPU updates 100 a second.
config::RunConfig tiny() {
  config::RunConfig config;
  config.model = {.layers = 2,
                  .hidden = 32,
                  .heads = 4,
                  .kv_heads = 2,
                  .ffn_hidden = 64,
                  .vocab = 256,
                  .max_sequence = 24};
  config.train.sequence = 24;
  config.train.micro_batch = 2;
  config.train.global_batch = 2;
  config.numerics.dtype = DType::bf16;
  config.numerics.accumulate_fp32 = true;
  config.subgroup_size = 4096;
  config.share.device_chunk = 4096;
  config.device.kind = config::DeviceKind::cuda;
  config.platform_products = 1e6;
  config.platform = {
      .cpu_update = 100, .device_update = 1e6, .host_to_device = 1400, .device_to_host = 1e6};
  return config;
}

constexpr ForecastScope lone_rank{.ranks = 1, .ranks_per_node = 1, .host_memory = GiB};

TEST(Forecast, CountsCudnnsWorkspaceWhereTheDeviceHasRoomForIt) {
  auto config = tiny();
  config.share.device_share = 0.0;  // no slots that could be lent
  config.train.activations = {activations::Policy::Rule::keep};
  auto const planned = forecast(config, lone_rank);
  config.device.attention = config::Attention::own;
  auto const own = forecast(config, lone_rank);
  EXPECT_THAT(own.attention, HasSubstr("device.attention=own"));
  config.device.attention = config::Attention::automatic;
  if (!cudnn::is_built_in()) {
    EXPECT_THAT(planned.attention, HasSubstr("built without it"));
    return;
  }
  EXPECT_THAT(planned.attention, HasSubstr("if every node has libcudnn.so.9, workspace"));
  EXPECT_GT(planned.device.model, own.device.model);
  config.device.memory = planned.device.total() - planned.device.held;
  EXPECT_EQ(forecast(config, lone_rank).device.model, planned.device.model);
  --config.device.memory;
  auto const small = forecast(config, lone_rank);
  EXPECT_THAT(small.attention, HasSubstr("has no room"));
  EXPECT_EQ(small.device.model, own.device.model);
  // Blocks are rather computed again than bits changed.
  config.train.activations = {activations::Policy::Rule::automatic};
  EXPECT_THAT(forecast(config, lone_rank).attention, HasSubstr("workspace"));
}

TEST(Forecast, CountsTheModelAndItsShards) {
  auto const one = forecast(tiny(), lone_rank);
  EXPECT_EQ(one.parameters, 34'976);
  EXPECT_EQ(one.nodes, 1);
  EXPECT_EQ(one.memory.state, 12 * one.shard_elements);
  // One micro-batch keeps 16 bit; what leaves the device goes through two layers on the host.
  EXPECT_GT(one.memory.gradients, 2 * one.shard_elements);
  auto on_host = tiny();
  on_host.device.kind = config::DeviceKind::host;
  EXPECT_EQ(forecast(on_host, lone_rank).memory.gradients, 2 * one.shard_elements);
  auto const four = forecast(tiny(), {.ranks = 4, .ranks_per_node = 2, .host_memory = GiB});
  EXPECT_EQ(four.nodes, 2);
  // Of six layers of 1 to 3 chunks, 11 in all, the first rank has one chunk each.
  EXPECT_EQ(one.shard_elements, 11 * 4096);
  EXPECT_EQ(four.shard_elements, 6 * 4096);
}

/// GPT-3 as Table 4 of Fuyou has it, on its machine: all is on storage, updates begin under
/// backward.
config::RunConfig fuyou(std::int64_t layers, std::int64_t hidden, std::int64_t batch,
                        Bytes memory) {
  config::RunConfig config;
  config.model = {.family = state::Family::gpt2,
                  .layers = layers,
                  .hidden = hidden,
                  .heads = hidden / 128,
                  .kv_heads = hidden / 128,
                  .ffn_hidden = 4 * hidden,
                  .vocab = 50257,
                  .max_sequence = 1024,
                  .tied_head = true};
  config.train.sequence = 1024;
  config.train.micro_batch = config.train.global_batch = batch;
  config.numerics.dtype = DType::bf16;
  config.parameter_home = parameters::Home::storage;
  config.overlap = config::Switch::on;
  config.share.device_share = 0.0;
  config.paths.emplace_back().directory = "/nvme";
  config.subgroup_size = 100'000'000;
  config.device.kind = config::DeviceKind::cuda;
  config.device.memory = memory;
  return config;
}

TEST(Forecast, TakesTheBatchesThatFuyouTrainsOnItsDevices) {
  for (auto const& [layers, hidden, batch, memory] : {std::tuple{40, 5120, 64, 24 * GiB},
                                                      {96, 12288, 16, 24 * GiB},
                                                      {128, 16384, 64, 79 * GiB}}) {
    auto const found = forecast(fuyou(layers, hidden, batch, memory), {.host_memory = 768 * GiB});
    EXPECT_LE(found.device.total(), memory) << found.parameters << " at " << batch;
    EXPECT_EQ(found.activations, "storage:0");
    // Three quarters of the batch more do not fit there.
    auto const more =
        forecast(fuyou(layers, hidden, batch * 7 / 4, memory), {.host_memory = 768 * GiB});
    EXPECT_GT(more.device.total(), memory) << found.parameters;
  }
}

Bytes reserve(DType type, config::DeviceKind kind, int threads, Bytes host_memory = GiB) {
  auto config = tiny();
  config.numerics.dtype = type;
  config.device.kind = kind;
  config.threads = threads;
  state::ShardMap const map{state::layers_of(config.model), 1};
  return memory_demand(config, map, {.host_memory = host_memory}).reserve_bytes;
}

TEST(MemoryDemand, LeavesRoomForTheScratchOfEveryThreadThatMultiplies) {
  using config::DeviceKind;
  Bytes const two = reserve(DType::fp32, DeviceKind::host, 2);
  EXPECT_EQ(reserve(DType::fp32, DeviceKind::host, 1), two);
  constexpr int many = 64;
  auto const shape = run_dims(tiny()).attention_shape();
  Bytes const attention = kernels::host::attention_scratch_bytes<float>(shape, many);
  EXPECT_GT(attention, 4 * MiB);
  EXPECT_EQ(reserve(DType::fp32, DeviceKind::host, many), two + 62 * 2 * MiB + attention - 4 * MiB);
  EXPECT_EQ(reserve(DType::fp32, DeviceKind::cuda, 64), two);
}

TEST(MemoryDemand, LeavesRoomForOperandsThatAreWidenedButAnEighthOfTheLimitAtMost) {
  using config::DeviceKind;
  Bytes const plain = reserve(DType::fp32, DeviceKind::host, 1);
  Bytes const widened = reserve(DType::fp16, DeviceKind::host, 1);
  EXPECT_GT(widened, plain);
  EXPECT_LE(widened, plain + 24 * MiB);
  EXPECT_EQ(reserve(DType::fp16, DeviceKind::host, 1, 8 * KiB), plain + KiB);
  EXPECT_EQ(reserve(DType::fp16, DeviceKind::cuda, 1), plain);
}

TEST(MemoryDemand, IsThatOfTheRankWithMost) {
  auto config = tiny();
  config.model.tied_head = true;
  config.train.global_batch = 16;
  config.numerics.sum_block = 3;
  for (double const resident : {0.0, 0.3, 0.9999, 1.0}) {
    config.share.device_resident = resident;
    for (int const ranks : {1, 2, 3, 5, 7, 8, 100}) {
      for (auto const route : {state::Route::in_place, state::Route::staged}) {
        for (int const together : {0, 4}) {
          config.train.together = together;
          state::ShardMap const map{state::layers_of(config.model), ranks};
          auto const demand = memory_demand(config, map, {.route = route, .host_memory = GiB});
          for (int rank = 0; rank < ranks; ++rank) {
            std::int64_t const shard = map.shard_elements(rank);
            EXPECT_LE(shard, demand.shard_elements);
            EXPECT_LE(shard - resident_elements(config, map, rank),
                      demand.shard_elements - demand.resident_elements);
            EXPECT_LE(gradient_host_bytes(config, map, rank, route),
                      gradient_host_bytes(config, map, state::fullest_rank, route));
          }
        }
      }
    }
  }
}

TEST(Forecast, TakesNothingAndAddsUpTheDevicesMemory) {
  auto config = tiny();
  config.share.device_resident = 0.5;
  auto const result = forecast(config, lone_rank);
  EXPECT_EQ(result.device.working_copy, 2 * result.shard_elements);
  EXPECT_EQ(result.shard_elements, 11 * chunk_elements);
  EXPECT_EQ(result.device.resident, 12 * 6 * chunk_elements) << "rounded to whole chunks";
  EXPECT_EQ(result.device.gradient, 0) << "it leaves from where the model has put it";
  EXPECT_GT(result.device.chunk_buffers, 0);
  EXPECT_GT(result.device.model, 0);
  EXPECT_EQ(result.device.total(), result.device.working_copy + result.device.resident +
                                       result.device.chunk_buffers + result.device.model +
                                       result.device.gradient + result.device.held);
  config.train.activations = {activations::Policy::Rule::recompute};
  EXPECT_LT(forecast(config, lone_rank).device.model, result.device.model);
  config.share.device_resident = 0.0;
  config.share.device_share = 0.0;
  EXPECT_EQ(forecast(config, lone_rank).device.chunk_buffers, 0);
}

TEST(Forecast, OfParametersThatLiveElsewhereTheDeviceHoldsAFewLayers) {
  auto config = tiny();
  auto const on_device = forecast(config, lone_rank);
  EXPECT_EQ(on_device.memory.parameters, 0);
  config.parameter_home = parameters::Home::host;
  auto const on_host = forecast(config, lone_rank);
  Bytes const shard = 2 * on_host.shard_elements;
  EXPECT_EQ(on_host.memory.parameters, shard);
  EXPECT_EQ(on_host.memory.node_total - on_device.memory.node_total,
            shard + on_host.memory.gradients - on_device.memory.gradients);
  EXPECT_LT(on_host.memory.gradients, on_device.memory.gradients)
      << "the cores' parameters are not staged";
  Bytes const layer = 2 * 3 * 4096;
  EXPECT_EQ(on_host.device.working_copy, 4 * layer) << "the device has no limit";
  config.device.memory = on_host.device.total() - 2 * layer + 1;
  EXPECT_EQ(forecast(config, lone_rank).device.working_copy, 2 * layer);
  config.device.kind = config::DeviceKind::host;
  EXPECT_EQ(forecast(config, lone_rank).device.working_copy, 0) << "they are used where they lie";

  config.parameter_home = parameters::Home::storage;
  tiers::PathSettings path;
  path.directory = "/scratch";
  path.read_rate = path.write_rate = 1e9;
  config.paths = {path};
  config.storage.most_cache = 0;
  auto const stored = forecast(config, lone_rank);
  EXPECT_EQ(stored.memory.parameter_buffers, 4) << "one sent, one read, two updated";
  EXPECT_EQ(stored.memory.parameters, 4 * 2 * 4096);
  EXPECT_EQ(stored.paths[0].bytes, 14 * stored.shard_elements);
}

TEST(Forecast, AShardThatIsSmallerThanAChunkOfTheUpdateTakesNoMoreThanItself) {
  auto config = tiny();
  config.subgroup_size = 100'000'000;
  config.share.device_chunk = 4 * 1024 * 1024;
  auto const planned = forecast(config, lone_rank);
  EXPECT_LT(planned.memory.gradients, MiB) << "with three chunks of the cores' new parameters";
  config.device.memory = planned.device.total();
  EXPECT_EQ(forecast(config, lone_rank).activations, "keep");
}

TEST(Forecast, OfALargeModelNeedsNoMemory) {
  auto config = tiny();
  config.model.layers = 96;
  config.model.hidden = config.model.ffn_hidden = 16'384;
  config.subgroup_size = 100'000'000;
  auto const result =
      forecast(config, {.ranks = 64, .ranks_per_node = 4, .host_memory = 4096 * GiB});
  EXPECT_GT(result.parameters, 100'000'000'000);
  EXPECT_GT(result.memory.state, 12 * GiB);
}

TEST(Forecast, ChoosesTheShareOfLeastTime) {
  auto const result = forecast(tiny(), lone_rank);
  EXPECT_THAT(result.missing, IsEmpty());
  // (1 - s) / 100 = (12 s + 2) / 1400, but for the ends that a chunk has.
  EXPECT_NEAR(result.update.share, 12.0 / 26.0, 0.02);
  auto baseline = tiny();
  baseline.share.device_share = 0.0;
  baseline.share.transfers = plan::Transfers::blocking;
  auto const blocking = forecast(baseline, lone_rank);
  EXPECT_EQ(blocking.update.share, 0.0);
  double const elements = static_cast<double>(result.shard_elements);
  EXPECT_NEAR(blocking.update.times.total.count(), elements / 100 + 2 * elements / 1400, 1e-6);
  EXPECT_LT(result.update.times.total, blocking.update.times.total);
  ASSERT_TRUE(result.stride.has_value());
  EXPECT_NEAR(*result.stride, (3 / 350.0 + 1e-6) / (1 / 100.0 - 1 / 700.0), 1e-9);
}

TEST(Forecast, AStepIsForwardBackwardAndUpdate) {
  auto config = tiny();
  config.share.device_share = 0.0;
  auto const result = forecast(config, lone_rank);
  EXPECT_TRUE(result.compute_known);
  EXPECT_EQ(result.tokens, 48);
  // The cores update 100 elements a second and everything else is quicker; parameters hide but for
  // the last chunk.
  EXPECT_EQ(name_of(result.step.uses.front().resource, result.paths), "updates on the cores");
  double const elements = static_cast<double>(result.shard_elements);
  EXPECT_NEAR(result.step.uses.front().busy.count(), elements / 100, 1e-6);
  EXPECT_NEAR(result.step.update.count(), elements / 100, 1e-6);
  EXPECT_GT(result.step.forward.count(), 0.0);
  EXPECT_GT(result.step.backward.count(), 0.0);
  config.platform_products = 0.0;
  auto const unknown = forecast(config, lone_rank);
  EXPECT_FALSE(unknown.compute_known);
  EXPECT_THAT(unknown.missing, ElementsAre("platform.products"));
}

TEST(Forecast, TakesTheRatesOfAnEmulatedDeviceWhereNoOthersAreGiven) {
  auto config = tiny();
  config.device.kind = config::DeviceKind::host;
  config.platform = {};
  config.platform_products = 0.0;
  config.device.emulation = {.host_to_device = 1400,
                             .device_to_host = 1e6,
                             .device_update = 1e6,
                             .host_update = 100,
                             .host_sum = 0,
                             .compute = 1e6};
  config.share.device_share = 0.0;
  auto const emulated = forecast(config, lone_rank);
  EXPECT_THAT(emulated.missing, IsEmpty());
  EXPECT_TRUE(emulated.compute_known);
  EXPECT_NEAR(emulated.step.update.count(), static_cast<double>(emulated.shard_elements) / 100,
              1e-6);
}

TEST(Forecast, KeepsToTheShareThatIsGiven) {
  auto config = tiny();
  config.share.device_share = 0.25;
  EXPECT_EQ(forecast(config, lone_rank).update.share, 0.25);
}

TEST(Forecast, MovesNothingFromTheCoresToThemselves) {
  auto config = tiny();
  config.device.kind = config::DeviceKind::host;
  config.platform = {.cpu_update = 100};
  auto const result = forecast(config, lone_rank);
  EXPECT_EQ(result.update.share, 0.0);
  EXPECT_EQ(result.update.times.host_to_device.count(), 0.0) << "written in place";
  config.device.emulation.host_to_device = 1e9;
  EXPECT_THAT(forecast(config, lone_rank).update.problem, HasSubstr("missing"));
}

TEST(Forecast, NamesTheRatesThatAreNotKnown) {
  auto config = tiny();
  config.platform = {.cpu_update = 100, .host_to_device = 1400};
  config.paths = {{.directory = "/nvme", .engine = {}, .emulation = {}}};
  auto const result = forecast(config, lone_rank);
  EXPECT_THAT(result.missing, ElementsAre("platform.device-to-host", "platform.device-update",
                                          "read= and write= of tiers.path=/nvme"));
  EXPECT_EQ(result.stride, std::nullopt);
}

TEST(Forecast, StorageBoundsAnUpdateAndIsSplit) {
  auto config = tiny();
  config.paths = {
      {.directory = "/a", .read_rate = 400, .write_rate = 400, .engine = {}, .emulation = {}},
      {.directory = "/b", .read_rate = 100, .write_rate = 100, .engine = {}, .emulation = {}}};
  config.storage.most_cache = 0;
  auto const result = forecast(config, lone_rank);
  ASSERT_THAT(result.paths, SizeIs(2));
  EXPECT_NEAR(result.paths[0].weight, 0.8, 1e-9);
  double const elements = static_cast<double>(result.shard_elements);
  EXPECT_NEAR(static_cast<double>(result.paths[0].bytes), 0.8 * 12 * elements, 1.0);
  // 24 B an element over 500 B/s in turns; more than the CPU takes.
  EXPECT_NEAR(result.update.times.storage.count(), 24 * elements / 500, 1e-3);
  EXPECT_EQ(result.update.times.total, result.update.times.storage);
  // With the first path alone, and gradients that are read in FP32.
  config.storage.split = {.rule = plan::SplitRule::first, .weights = {}};
  config.storage.flush_fp32 = true;
  config.paths[1].read_rate = 0.0;
  auto const first = forecast(config, lone_rank);
  EXPECT_NEAR(first.update.times.storage.count(), 28 * elements / 400, 1e-3);
  EXPECT_EQ(first.paths[1].bytes, 0);
}

TEST(Forecast, AStepWritesTheStateOfANodesRanksToItsPaths) {
  auto config = tiny();
  config.paths = {
      {.directory = "/a", .read_rate = 4e6, .write_rate = 4e6, .engine = {}, .emulation = {}}};
  config.paths[0].endurance = GiB;
  config.storage.most_cache = 0;
  config.overlap = config::Switch::off;
  auto const one = forecast(config, lone_rank);
  // Without a cache every subgroup is written once.
  EXPECT_EQ(one.paths[0].written, 12 * one.shard_elements);
  EXPECT_EQ(one.paths[0].endurance, GiB);
  config.train.global_batch = 4;
  auto const two = forecast(config, {.ranks = 2, .ranks_per_node = 2, .host_memory = GiB});
  EXPECT_NEAR(static_cast<double>(two.paths[0].written),
              2.0 * 12.0 * static_cast<double>(two.shard_elements), 2.0);
}

TEST(Forecast, AbsurdBatchesAreRefused) {
  auto config = tiny();
  config.train.micro_batch = config.train.global_batch = 1'000'000'000'000;
  config.train.sequence = config.model.max_sequence = 1'000'000'000'000;
  EXPECT_THROW((void)forecast(config, lone_rank), UsageError);
}

TEST(Forecast, WhatDoesNotFitIsTheErrorOfARun) {
  auto scope = lone_rank;
  scope.host_memory = 64 * KiB;
  try {
    (void)forecast(tiny(), scope);
    FAIL();
  } catch (UsageError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("tiers.host-memory=64.0 KiB (90 % of what the machine"));
  }
  auto config = tiny();
  config.host_memory = 64 * KiB;
  try {
    (void)forecast(config, scope);
    FAIL();
  } catch (UsageError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("tiers.host-memory=64.0 KiB is too small"));
  }
}

}  // namespace
}  // namespace offstage::train
