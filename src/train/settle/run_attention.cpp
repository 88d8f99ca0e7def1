#include "train/settle/run_attention.hpp"

#include <fmt/format.h>

#include <string>
#include <type_traits>
#include <utility>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/simd.hpp"
#include "kernels/linear/matmul.hpp"
#include "platform/cpu/affinity.hpp"

namespace offstage::train {
namespace {

/// Returns why cuDNN is not asked where some query does not see all keys before it, else nothing.
char const* hidden_keys(config::RunConfig const& config) {
  if (config.data.documents_apart()) {
    return "it is not asked to keep documents apart (data.attention)";
  }
  return config.model.window > 0 && config.model.window < config.train.sequence
             ? "it is not asked for a sliding window (model.window)"
             : "";
}

/// Makes plans on all ranks. Keeps rank 0's text if all have the same plans, or the first reason of
/// a rank that has none.
void plan_everywhere(mpi::Communicator const& comm, config::RunConfig const& config,
                     RunAttention& attention, AttentionFacts& facts) {
  try {
    if (std::string const reason = hidden_keys(config); !reason.empty()) {
      throw cudnn::CudnnError{reason};
    }
    attention.library = cudnn::load_library();
    attention.plans = attention.library->plan(attention_shape(config));
    facts.about =
        fmt::format("cuDNN {} ({})", attention.library->version(), attention.plans->plans());
  } catch (cudnn::CudnnError const& error) {
    attention.plans.reset();
    facts.about = error.what();
  }
  auto const lowest = static_cast<int>(comm.minimum(attention.plans ? comm.size() : comm.rank()));
  bool const all = lowest == comm.size();
  auto const said = comm.broadcast(facts.about, all ? 0 : lowest);
  bool const alike = comm.minimum(said == facts.about ? 1 : 0) > 0;
  facts.planned = all && alike;
  facts.about = facts.planned || !all ? said : "its versions or plans differ between the ranks";
  if (facts.planned) {
    facts.workspace = comm.maximum(attention.plans->workspace());
  } else if (!all && lowest > 0) {
    facts.about += fmt::format(" (rank {})", lowest);
  }
}

/// The instruction set and the library of cores, on which bits depend.
std::string cores_text(DType type) {
  auto const text = fmt::format("{}, {}", name_of(best_simd()), kernels::host::matmul_library());
  return type == DType::bf16
             ? fmt::format("{}, attention: {}", text, bf16_on_host(kernels::best_bf16_unit()))
             : text;
}

/// Warns on rank 0 of the first rank whose cores compute otherwise. Collective.
void look_at_cores(mpi::Communicator const& comm, std::string const& mine) {
  auto const first = comm.broadcast(mine, 0);
  auto const other = static_cast<int>(comm.minimum(mine == first ? comm.size() : comm.rank()));
  if (other == comm.size()) {
    return;
  }
  auto const text = comm.broadcast(mine, other);
  auto const node = comm.broadcast(cpu::host_name(), other);
  if (comm.rank() == 0) {
    log::warning(
        "rank {} on {} computes by {}, but rank 0 by {}: the bits depend on which rank has which "
        "micro-batch; ONEDNN_MAX_CPU_ISA, set to what all nodes have, makes them alike",
        other, node, text, first);
  }
}

}  // namespace

AttentionChoice choose_attention(config::Attention asked, AttentionFacts const& facts) {
  if (!facts.gpus) {
    if (asked == config::Attention::cudnn) {
      throw UsageError{
          "device.attention=cudnn is for GPUs, but the device is host memory (device.kind=host, or "
          "auto without GPUs); set device.kind=cuda, or device.attention=auto"};
    }
    return {};
  }
  if (asked == config::Attention::own) {
    return {.text = "own kernels (device.attention=own)"};
  }
  if (asked == config::Attention::cudnn && !facts.planned) {
    throw UsageError{fmt::format(
        "device.attention=cudnn, but {}; correct that, or set device.attention=auto", facts.about)};
  }
  if (!facts.planned) {
    return {.text = fmt::format("own kernels ({})", facts.about)};
  }
  if (asked == config::Attention::automatic && !facts.has_room) {
    auto const why = fmt::format("cuDNN's workspace, {}, has no room on the device",
                                 format_bytes(facts.workspace));
    return {
        .text = fmt::format("own kernels ({})", why),
        .warning = fmt::format(
            "attention is computed by Offstage's own kernels, because {}: that changes bits; raise "
            "device.memory or lower train.micro-batch, or set device.attention=own to have "
            "them always",
            why)};
  }
  return {.cudnn = true,
          .text = fmt::format("{}, workspace {}", facts.about, format_bytes(facts.workspace))};
}

std::string bf16_on_host(kernels::Bf16Unit unit) {
  return unit == kernels::Bf16Unit::none ? std::string{"bf16 widened to FP32"}
                                         : fmt::format("bf16 products by {}", name_of(unit));
}

cudnn::AttentionShape attention_shape(config::RunConfig const& config) {
  return {.type = config.numerics.dtype,
          .batch = config.train.micro_batch,
          .sequence = config.train.sequence,
          .heads = config.model.heads,
          .kv_heads = config.model.kv_heads,
          .head_dim = config.model.head_dim()};
}

AttentionFacts planned_attention(config::RunConfig const& config) {
  constexpr int h100 = 90;
  auto const shape = attention_shape(config);
  std::string reason = hidden_keys(config);
  if (reason.empty()) {
    reason =
        cudnn::is_built_in() ? cudnn::reason_against(shape, h100) : "offstage was built without it";
  }
  AttentionFacts facts{.gpus = config.device.kind == config::DeviceKind::cuda,
                       .planned = reason.empty()};
  if (facts.planned) {
    facts.about = "cuDNN, if every node has libcudnn.so.9";
    facts.workspace = cudnn::largest_workspace(shape);
  } else {
    facts.about = "cuDNN: " + reason;
  }
  return facts;
}

RunAttention make_run_attention(config::RunConfig const& config, mpi::Communicator const& comm,
                                device::Device const& device,
                                std::function<bool(Bytes)> const& has_room) {
  RunAttention attention;
  AttentionFacts facts{.gpus = device.kind() == device::Kind::cuda};
  if (facts.gpus && config.device.attention != config::Attention::own) {
    plan_everywhere(comm, config, attention, facts);
  }
  if (facts.planned) {
    facts.has_room = has_room(facts.workspace);
  }
  AttentionChoice choice;
  mpi::agree(comm, [&] { choice = choose_attention(config.device.attention, facts); });
  if (!choice.warning.empty() && comm.rank() == 0) {
    log::warning("{}", choice.warning);
  }
  attention.text = std::move(choice.text);
  if (choice.cudnn) {
    attention.libraries = facts.about;
  } else {
    attention.plans.reset();
  }
  if (!facts.gpus) {
    if (config.numerics.dtype == DType::bf16) {
      attention.text = bf16_on_host(kernels::best_bf16_unit());
    }
    auto const cores = cores_text(config.numerics.dtype);
    look_at_cores(comm, cores);
    attention.libraries =
        fmt::format("{} thread{}, {}", config.threads, config.threads == 1 ? "" : "s", cores);
  }
  return attention;
}

}  // namespace offstage::train
