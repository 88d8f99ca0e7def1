#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "device/device.hpp"
#include "kernels/host/bf16_unit.hpp"
#include "platform/cudnn/attention.hpp"
#include "platform/cudnn/library.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::train {

/// Facts that decide whether cuDNN computes attention, the same on all ranks.
struct AttentionFacts {
  bool gpus = false;     ///< the ranks compute on GPUs
  bool planned = false;  ///< cuDNN has plans for the run's shape
  std::string about{};   ///< cuDNN's version and plans, or why there are none
  Bytes workspace{};     ///< device memory that the plans take
  bool has_room = true;  ///< the device has room for them beside everything else of the run
};

struct AttentionChoice {
  bool cudnn = false;
  std::string text{};  ///< in words: what computes attention, and why; empty: not on GPUs
  /// device.attention=auto has left cuDNN out for want of memory; else empty.
  std::string warning{};
};

/// Chooses whether cuDNN computes attention.
/// Errors: UsageError: device.attention=cudnn is impossible; names the reason and the remedy.
[[nodiscard]] AttentionChoice choose_attention(config::Attention asked,
                                               AttentionFacts const& facts);

/// The cores' way of computing attention in bf16, in words, for people and checkpoints. Bits depend
/// on it.
[[nodiscard]] std::string bf16_on_host(kernels::Bf16Unit unit);

/// The shape of a micro-batch of the run.
[[nodiscard]] cudnn::AttentionShape attention_shape(config::RunConfig const& config);

/// The facts of a planned run: from the shape alone, for this program, on nodes with cuDNN and
/// H100s.
[[nodiscard]] AttentionFacts planned_attention(config::RunConfig const& config);

/// The attention of a run.
struct RunAttention {
  /// Null, as are the plans: Offstage's own kernels compute attention.
  std::unique_ptr<cudnn::Library> library;
  std::unique_ptr<cudnn::Attention> plans;
  std::string text;  ///< as AttentionChoice's, or bf16_on_host()
  /// Facts on which the bits depend beside the device's libraries: "cuDNN 9.19.0 (eng2_k24=7,
  /// eng6_k24=26)"; on cores "2 threads, AVX-512, oneDNN 2.6.0", in bf16 followed by ", attention:
  /// bf16 products by AMX". Empty: none.
  std::string libraries;
};

/// Makes the attention of a run on the device's GPU, which is the calling thread's current one.
/// cuDNN computes attention if all ranks have the same version and plans, and the device has room
/// for their workspace beside everything else of the run. If with device.attention=auto only that
/// room is missing, rank 0 warns, because Offstage's own kernels give other bits. It warns, too, if
/// the cores of some rank compute otherwise than its own. Collective;
/// `has_room(workspace)` says the same on all ranks (has_attention_room).
/// Errors: as choose_attention, as mpi::AgreedError.
[[nodiscard]] RunAttention make_run_attention(config::RunConfig const& config,
                                              mpi::Communicator const& comm,
                                              device::Device const& device,
                                              std::function<bool(Bytes)> const& has_room);

}  // namespace offstage::train
