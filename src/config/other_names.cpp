#include "config/other_names.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace offstage::config {
namespace {

/// Each tool's word, and the key.
constexpr auto names = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"learning-rate", "optimizer.lr"},
    {"max-lr", "optimizer.lr"},
    {"adam-beta1", "optimizer.beta1"},
    {"adam-beta2", "optimizer.beta2"},
    {"adam-epsilon", "optimizer.eps"},
    {"adam-eps", "optimizer.eps"},
    {"clip-grad", "optimizer.clip"},
    {"grad-clip", "optimizer.clip"},
    {"gradient-clipping", "optimizer.clip"},
    {"max-grad-norm", "optimizer.clip"},
    {"lr-decay-iters", "optimizer.decay-steps"},
    {"lr-decay-style", "optimizer.schedule"},
    {"lr-scheduler-type", "optimizer.schedule"},
    {"lr-warmup-iters", "optimizer.warmup-steps"},
    {"warmup", "optimizer.warmup-steps"},
    {"warmup-iters", "optimizer.warmup-steps"},
    {"optim", "optimizer.kind"},
    {"eval-interval", "train.valid-every"},
    {"eval-steps", "train.valid-every"},
    {"eval-iters", "train.valid-batches"},
    {"logging-steps", "train.log-every"},
    {"log-interval", "train.log-every"},
    {"early-stopping-patience", "train.patience"},
    {"max-iters", "train.steps"},
    {"max-steps", "train.steps"},
    {"train-iters", "train.steps"},
    {"micro-batch-size", "train.micro-batch"},
    {"per-device-train-batch-size", "train.micro-batch"},
    {"batch-size", "train.global-batch"},
    {"global-batch-size", "train.global-batch"},
    {"gradient-accumulation-steps", "train.global-batch"},
    {"train-batch-size", "train.global-batch"},
    {"block-size", "train.sequence"},
    {"seq-len", "train.sequence"},
    {"seq-length", "train.sequence"},
    {"sequence-length", "train.sequence"},
    {"finetune", "train.init-from"},
    {"model-name-or-path", "train.init-from"},
    {"gradient-checkpointing", "train.activations"},
    {"recompute-activations", "train.activations"},
    {"recompute-granularity", "train.activations"},
    {"model-type", "model.family"},
    {"n-layer", "model.layers"},
    {"num-hidden-layers", "model.layers"},
    {"num-layers", "model.layers"},
    {"hidden-size", "model.hidden"},
    {"n-embd", "model.hidden"},
    {"n-head", "model.heads"},
    {"num-attention-heads", "model.heads"},
    {"num-key-value-heads", "model.kv-heads"},
    {"num-query-groups", "model.kv-heads"},
    {"kv-channels", "model.head-dim"},
    {"ffn-hidden-size", "model.ffn-hidden"},
    {"intermediate-size", "model.ffn-hidden"},
    {"vocab-size", "model.vocab"},
    {"max-position-embeddings", "model.max-sequence"},
    {"n-positions", "model.max-sequence"},
    {"tie-word-embeddings", "model.tied-head"},
    {"rotary-base", "model.rope-theta"},
    {"sliding-window", "model.window"},
    {"layernorm-epsilon", "model.norm-eps"},
    {"rms-norm-eps", "model.norm-eps"},
    {"bf16", "numerics.dtype"},
    {"fp16", "numerics.dtype"},
    {"mixed-precision", "numerics.dtype"},
    {"precision", "numerics.dtype"},
    {"torch-dtype", "numerics.dtype"},
    {"initial-loss-scale", "numerics.loss-scale-start"},
    {"data-path", "data.train"},
    {"train-data-path", "data.train"},
    {"train-file", "data.train"},
    {"valid-data-path", "data.valid"},
    {"validation-file", "data.valid"},
    {"load", "checkpoint.resume"},
    {"resume-from-checkpoint", "checkpoint.resume"},
    {"save", "checkpoint.dir"},
    {"save-interval", "checkpoint.every"},
    {"save-steps", "checkpoint.every"},
    {"save-total-limit", "checkpoint.keep"},
    {"log-dir", "run.dir"},
    {"output-dir", "run.dir"},
    {"tensorboard-dir", "run.tensorboard"},
    {"nvme-path", "tiers.path"},
    {"offload-dir", "tiers.path"},
});

}  // namespace

std::span<std::pair<std::string_view, std::string_view> const> other_names() {
  return names;
}

std::string_view key_of_other_name(std::string_view word) {
  std::string name{word.substr(word.rfind('.') + 1)};
  std::ranges::replace(name, '_', '-');
  auto const* const found =
      std::ranges::find(names, name, [](auto const& pair) { return pair.first; });
  return found == names.end() ? std::string_view{} : found->second;
}

}  // namespace offstage::config
