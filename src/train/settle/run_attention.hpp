#pragma once

#include <memory>
#include <string>

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "device/device.hpp"
#include "kernels/host/bf16_unit.hpp"
#include "platform/cudnn/attention.hpp"
#include "platform/cudnn/library.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/rank_link.hpp"
#include "state/shard.hpp"
#include "train/settle/activation_choice.hpp"

namespace offstage::train {

/// Facts that decide who computes attention, the same on all ranks.
struct AttentionFacts {
  bool gpus = false;     ///< the ranks compute on GPUs
  bool planned = false;  ///< cuDNN has plans for the run's shape
  std::string about{};   ///< its version and plans, or why there are none
  Bytes workspace{};     ///< that they take of the device
  bool has_room = true;  ///< what else a run takes leaves as much of the device
};

struct AttentionChoice {
  bool cudnn = false;
  std::string text{};  ///< for people: by what, and why; empty: not on GPUs
  std::string
      warning{};  ///< device.attention=auto has left cuDNN out for want of memory; empty: not so
};

/// Errors: UsageError: device.attention=cudnn cannot be; names the reason and the remedy.
[[nodiscard]] AttentionChoice choose_attention(config::Attention asked,
                                               AttentionFacts const& facts);

/// By what the cores compute attention of bf16, for people and checkpoints: bits depend on it.
[[nodiscard]] std::string bf16_on_host(kernels::Bf16Unit unit);

/// The shape that a micro-batch of the run has.
[[nodiscard]] cudnn::AttentionShape attention_shape(config::RunConfig const& config);

/// The facts of a run that is planned: by the shape alone, with this program, on nodes that have
/// cuDNN and H100s.
[[nodiscard]] AttentionFacts planned_attention(config::RunConfig const& config);

/// Who computes attention in a run.
struct RunAttention {
  std::unique_ptr<cudnn::Library> library;  ///< null, as are the plans: the own kernels do
  std::unique_ptr<cudnn::Attention> plans;
  std::string text;  ///< as AttentionChoice's, or bf16_on_host()
  /// On which the bits depend: "cuDNN 9.19.0 (eng2_k24=7, eng6_k24=26)", "attention: bf16 products
  /// by AMX"; empty: the device's alone.
  std::string libraries;
};

/// Whether a run with so much workspace fits on the device of rank `rank`, with the schedule and
/// the activations that it would settle there. What is held there of gradients takes only what is
/// left. T is numerics.dtype. `room.memory` is known.
template <class T>
[[nodiscard]] bool has_attention_room(config::RunConfig config, state::ShardMap const& map,
                                      int rank, ActivationRoom const& room, Bytes workspace);

/// On the device's GPU, which is the calling thread's current one. cuDNN computes attention where
/// all ranks have the same version and plans, and the device has room for their workspace beside
/// all else that the run takes of it; rank 0 warns where device.attention=auto has the own kernels
/// for want of that alone, as they give other bits. T is numerics.dtype; `link`: what device_demand
/// is told of it. Collective. Errors: as choose_attention, as mpi::AgreedError.
template <class T>
[[nodiscard]] RunAttention make_run_attention(config::RunConfig const& config,
                                              mpi::Communicator const& comm,
                                              device::Device const& device,
                                              state::RankLink const& link);

}  // namespace offstage::train
