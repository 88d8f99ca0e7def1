#include "train/settle/run_rank_link.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "platform/mpi/session.hpp"
#include "platform/nccl/library.hpp"
#include "train/memory/device_demand.hpp"

namespace offstage::train {
namespace {

using state::Route;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

/// Four ranks with a GPU each, NCCL, and an MPI that knows nothing of GPUs.
RankLinkFacts link_of_gpus() {
  return {.ranks = 4,
          .gpus = true,
          .host_visible = false,
          .mpi_is_aware = false,
          .nccl = true,
          .about_nccl = "NCCL 2.28.3"};
}

config::RunConfig of_a_small_model() {
  config::RunConfig config;
  config.model = {.layers = 2,
                  .hidden = 32,
                  .heads = 4,
                  .kv_heads = 2,
                  .ffn_hidden = 64,
                  .vocab = 512,
                  .max_sequence = 64};
  config.train.sequence = 64;
  config.train.micro_batch = 2;
  config.train.global_batch = 8;
  config.numerics.dtype = DType::bf16;
  config.subgroup_size = 1 << 20;
  config.share.device_chunk = 1 << 20;
  return config;
}

std::string error_of(config::CommBackend asked, RankLinkFacts const& facts) {
  try {
    static_cast<void>(choose_rank_link(asked, facts));
  } catch (UsageError const& error) {
    return error.what();
  }
  return {};
}

TEST(RunRankLink, IsNcclsWhereEachRankHasAGpuOfItsOwn) {
  for (auto const asked : {config::CommBackend::automatic, config::CommBackend::nccl}) {
    auto const choice = choose_rank_link(asked, link_of_gpus());
    EXPECT_TRUE(choice.nccl);
    EXPECT_EQ(choice.route, Route::direct);
    EXPECT_THAT(choice.text, HasSubstr("NCCL 2.28.3"));
  }
}

TEST(RunRankLink, SaysOfGpusThatNobodyHasLookedAtThatTheyAreAssumed) {
  auto facts = link_of_gpus();
  EXPECT_THAT(choose_rank_link(config::CommBackend::automatic, facts).text,
              HasSubstr("(each rank has a GPU of its own)"));
  facts.assumed = true;
  EXPECT_THAT(choose_rank_link(config::CommBackend::automatic, facts).text,
              HasSubstr("(if each rank has a GPU of its own"));
}

TEST(RunRankLink, CountsWhatNcclTakesOfTheDeviceByTheRanksOfANode) {
  auto facts = link_of_gpus();
  auto const bytes_of = [&](int ranks, int ranks_per_node) {
    facts.ranks = ranks;
    facts.ranks_per_node = ranks_per_node;
    return choose_rank_link(config::CommBackend::automatic, facts).device_bytes;
  };
  EXPECT_EQ(bytes_of(1, 1), 0);
  // 256 MiB, a ring's 448 and as much for each peer; issue 1685 of NCCL has 3.28 GB for seven.
  EXPECT_EQ(bytes_of(2, 2), 1152 * MiB);
  EXPECT_EQ(bytes_of(8, 8), 3840 * MiB);
  EXPECT_EQ(bytes_of(6, 8), bytes_of(6, 6)) << "a node that is not full";
  // On several nodes 56 for each peer on the node, and the network's 512.
  EXPECT_EQ(bytes_of(2, 1), 1216 * MiB);
  EXPECT_EQ(bytes_of(1024, 8), 1608 * MiB);
  facts.nccl = false;
  EXPECT_EQ(bytes_of(8, 8), 0);
}

TEST(RunRankLink, IsMpisWhereTheDeviceHasNoRoomForWhatNcclTakes) {
  auto facts = link_of_gpus();
  Bytes const expected = choose_rank_link(config::CommBackend::automatic, facts).device_bytes;
  facts.device_memory = expected;
  EXPECT_TRUE(choose_rank_link(config::CommBackend::automatic, facts).nccl);
  EXPECT_THAT(choose_rank_link(config::CommBackend::automatic, facts).warning, IsEmpty());
  facts.device_memory = expected - 1;
  auto const choice = choose_rank_link(config::CommBackend::automatic, facts);
  EXPECT_FALSE(choice.nccl);
  EXPECT_EQ(choice.route, Route::staged);
  EXPECT_EQ(choice.device_bytes, 0);
  EXPECT_THAT(choice.text, HasSubstr(format_bytes(expected)));
  EXPECT_THAT(choice.warning, AllOf(HasSubstr("device.memory"), HasSubstr("comm.backend=mpi")));
  EXPECT_TRUE(choose_rank_link(config::CommBackend::nccl, facts).nccl) << "it may take less";
}

TEST(RunRankLink, IsMpisThroughHostMemoryWhereTheDeviceHasNoRoomForSlicesBesideTheModel) {
  auto facts = link_of_gpus();
  Bytes const own = choose_rank_link(config::CommBackend::automatic, facts).device_bytes;
  facts.device_memory = own + 30 * GiB;
  facts.needs = {.direct = 30 * GiB, .staged = 20 * GiB};
  EXPECT_TRUE(choose_rank_link(config::CommBackend::automatic, facts).nccl);
  facts.needs.direct += 1;
  auto choice = choose_rank_link(config::CommBackend::automatic, facts);
  EXPECT_FALSE(choice.nccl);
  EXPECT_EQ(choice.route, Route::staged);
  EXPECT_THAT(choice.warning, HasSubstr("30.0 GiB of the model and of slices from other ranks"));
  EXPECT_TRUE(choose_rank_link(config::CommBackend::nccl, facts).nccl) << "asked for";
  // CUDA-aware MPI needs the memory of slices, but none of its own.
  facts.mpi_is_aware = true;
  EXPECT_EQ(choose_rank_link(config::CommBackend::automatic, facts).route, Route::direct);
  facts.device_memory = 30 * GiB;
  EXPECT_EQ(choose_rank_link(config::CommBackend::automatic, facts).route, Route::staged);
  choice = choose_rank_link(config::CommBackend::mpi, facts);
  EXPECT_EQ(choice.route, Route::staged);
  EXPECT_THAT(choice.text, HasSubstr("no room for slices from other ranks"));
  // Where no way fits, the device has the words.
  facts.device_memory = 19 * GiB;
  EXPECT_TRUE(choose_rank_link(config::CommBackend::automatic, facts).nccl);
}

TEST(RankLinkNeeds, AreALayersSlicesMoreFromDeviceToDevice) {
  auto config = of_a_small_model();
  auto const needs = rank_link_needs(config, 2);
  // Of the head, 5 chunks of 4096, rank 0 has 3, and gets them from both.
  EXPECT_EQ(needs.direct - needs.staged, 2 * 3 * 4096 * 2);
  config.train.activations = {activations::Policy::Rule::keep};
  auto const kept = rank_link_needs(config, 2);
  EXPECT_GT(kept.staged, needs.staged);
  config.share.device_gradients = 8 * KiB;  // they are not what is left, but asked for
  EXPECT_GE(rank_link_needs(config, 2).direct, kept.direct + 8 * KiB);
}

TEST(RankLinkNeeds, LeaveNoRoomForAttentionsBuffer) {
  auto config = of_a_small_model();
  config.device.kind = config::DeviceKind::cuda;
  config.train.activations = {activations::Policy::Rule::recompute};
  state::ShardMap const map{state::layers_of(config.model), 2};
  Bytes const least = rank_link_needs(config, 2).staged;
  auto const demand = [&](Bytes memory) {
    return device_demand(config, map, state::fullest_rank,
                         {.route = state::Route::staged, .device_memory = memory},
                         config.subgroup_size);
  };
  EXPECT_LE(demand(least).total(), least);
  EXPECT_TRUE(demand(least).lacks_attention_buffer);
  EXPECT_TRUE(demand(0).attention_buffer);
}

TEST(RankLinkNeeds, AreThoseOfTheHomeThatThePlanMayChoose) {
  auto config = of_a_small_model();
  config.share.device_share = 0.0;
  config.parameter_home = parameters::Home::host;
  auto const on_host = rank_link_needs(config, 2);
  config.parameter_home = parameters::Home::device;
  ASSERT_LT(on_host.staged, rank_link_needs(config, 2).staged);
  config.plan.choose = true;
  config.home_is_open = true;
  EXPECT_EQ(rank_link_needs(config, 2).staged, on_host.staged);
  EXPECT_EQ(rank_link_needs(config, 2).direct, on_host.direct);
  config.share.device_share.reset();
  EXPECT_EQ(rank_link_needs(config, 2).staged, on_host.staged);
  config.home_is_open = false;
  EXPECT_GT(rank_link_needs(config, 2).staged, on_host.staged) << "given, it stays";
}

// As its authors ran it, on nodes with four GPUs of 40 GB and 512 GB (MLP-Offload, Tables 1
// and 2).
TEST(RankLinkNeeds, LeaveRoomFor280BillionParametersOnGpusOf40Gb) {
  config::RunConfig config;
  config.model = {.layers = 72,
                  .hidden = 16384,
                  .heads = 128,
                  .kv_heads = 128,
                  .ffn_hidden = 57344,
                  .vocab = 32000,
                  .max_sequence = 2048};
  config.train.sequence = 2048;
  config.train.micro_batch = 1;
  config.train.global_batch = 32;
  config.numerics.dtype = DType::bf16;
  config.subgroup_size = 1 << 20;
  config.share.device_chunk = 1 << 20;
  config.parameter_home = parameters::Home::host;
  config.device.kind = config::DeviceKind::cuda;
  config.device.memory = 40'000'000'000;
  auto const needs = rank_link_needs(config, 32);
  EXPECT_LT(needs.direct, config.device.memory);
  EXPECT_EQ(plan_rank_link(config, 32, 4).route,
            nccl::is_built_in() ? Route::direct : Route::staged);
  config.device.memory = needs.direct - 1;
  EXPECT_LT(needs.staged, config.device.memory);
  EXPECT_EQ(plan_rank_link(config, 32, 4).route, Route::staged);
}

TEST(RunRankLink, IsMpisWhereNcclCannotBeOrMpiWasAskedFor) {
  auto facts = link_of_gpus();
  EXPECT_FALSE(choose_rank_link(config::CommBackend::mpi, facts).nccl);
  EXPECT_EQ(choose_rank_link(config::CommBackend::mpi, facts).route, Route::staged);
  facts.nccl = false;
  facts.about_nccl = "ranks 0 and 1 share a GPU, which NCCL refuses";
  auto choice = choose_rank_link(config::CommBackend::automatic, facts);
  EXPECT_EQ(choice.route, Route::staged);
  EXPECT_THAT(choice.text, AllOf(HasSubstr("pinned"), HasSubstr("share a GPU")));
  facts.mpi_is_aware = true;
  choice = choose_rank_link(config::CommBackend::automatic, facts);
  EXPECT_EQ(choice.route, Route::direct);
  EXPECT_THAT(choice.text, AllOf(HasSubstr("CUDA-aware MPI"), HasSubstr("share a GPU")));
}

TEST(RunRankLink, OfTheEmulatedDeviceGoesThroughHostMemoryIfThereIsALink) {
  RankLinkFacts facts{.ranks = 2, .mpi_is_aware = true};
  EXPECT_EQ(choose_rank_link(config::CommBackend::automatic, facts).route, Route::in_place);
  facts.host_visible = false;
  EXPECT_EQ(choose_rank_link(config::CommBackend::automatic, facts).route, Route::staged);
  EXPECT_THAT(choose_rank_link(config::CommBackend::mpi, facts).text, HasSubstr("emulated"));
}

TEST(RunRankLink, OfOneRankIsNone) {
  auto facts = link_of_gpus();
  facts.ranks = 1;
  facts.nccl = false;  // nobody looked for it
  for (auto const asked :
       {config::CommBackend::automatic, config::CommBackend::mpi, config::CommBackend::nccl}) {
    auto const choice = choose_rank_link(asked, facts);
    EXPECT_FALSE(choice.nccl);
    EXPECT_EQ(choice.route, Route::staged);
    EXPECT_THAT(choice.text, IsEmpty());
  }
}

TEST(RunRankLink, SaysWhyNcclCannotBeAndWhatHelps) {
  auto facts = link_of_gpus();
  EXPECT_THAT(error_of(config::CommBackend::nccl, facts), IsEmpty());
  facts.nccl = false;
  facts.about_nccl = "NCCL: libnccl.so.2 cannot be loaded";
  EXPECT_THAT(error_of(config::CommBackend::nccl, facts),
              AllOf(HasSubstr("comm.backend=nccl"), HasSubstr("libnccl.so.2"),
                    HasSubstr("comm.backend=auto")));
  for (int const ranks : {1, 4}) {
    EXPECT_THAT(error_of(config::CommBackend::nccl, {.ranks = ranks}),
                AllOf(HasSubstr("comm.backend=nccl"), HasSubstr("device.kind=host"),
                      HasSubstr("device.kind=cuda")));
  }
}

TEST(RunRankLink, IsPlannedForGpusOfTheirOwnUnlessTheDeviceIsEmulated) {
  auto config = of_a_small_model();
  config.device.kind = config::DeviceKind::cuda;
  EXPECT_EQ(plan_rank_link(config, 2, 2).nccl, nccl::is_built_in());
  EXPECT_THAT(plan_rank_link(config, 2, 2).text, HasSubstr("NCCL"));
  EXPECT_THAT(plan_rank_link(config, 2, 2).text,
              HasSubstr(nccl::is_built_in() ? "if each rank" : "without NCCL"));
  EXPECT_EQ(plan_rank_link(config, 2, 2).device_bytes,
            nccl::is_built_in() ? nccl::device_bytes(2, 2) : 0);
  config.device.memory = 64 * MiB;
  EXPECT_FALSE(plan_rank_link(config, 2, 2).nccl);
  config.device.memory = 0;
  config.device.share_gpu = true;
  EXPECT_FALSE(plan_rank_link(config, 2, 2).nccl);
  EXPECT_THAT(plan_rank_link(config, 2, 2).text, HasSubstr("device.share-gpu"));
  EXPECT_EQ(plan_rank_link(config, 2, 1).nccl, nccl::is_built_in());  // nobody to share with
  config.device.kind = config::DeviceKind::host;
  EXPECT_EQ(plan_rank_link(config, 2, 2).route, Route::in_place);
  config.device.emulation.device_to_host = 1e9;
  EXPECT_EQ(plan_rank_link(config, 2, 2).route, Route::staged);
  config.comm_backend = config::CommBackend::nccl;
  EXPECT_THROW(static_cast<void>(plan_rank_link(config, 2, 2)), UsageError);
}

TEST(RunRankLink, IsPlannedByWhatMpiWasBuiltForWithoutStartingIt) {
  config::RunConfig config;
  config.device.kind = config::DeviceKind::cuda;
  config.comm_backend = config::CommBackend::mpi;
  bool const is_aware = mpi::is_built_for_device_memory();
  EXPECT_EQ(plan_rank_link(config, 2, 2).route, is_aware ? Route::direct : Route::staged);
  EXPECT_EQ(plan_rank_link(config, 2, 2).device_bytes, 0);
}

}  // namespace
}  // namespace offstage::train
