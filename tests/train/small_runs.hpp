#pragma once

#include <cstdint>

#include "activations/policy.hpp"
#include "base/dtype.hpp"
#include "config/run_config.hpp"

/// Runs of small models, which tests change where they look.
namespace offstage::train {

/// Micro-batches of two sequences of 32 tokens, whose activations stay on the device. The cores
/// update all parameters.
inline config::RunConfig small_run(int layers, std::int64_t global_batch) {
  config::RunConfig config;
  config.model = {.layers = layers,
                  .hidden = 64,
                  .heads = 4,
                  .kv_heads = 4,
                  .ffn_hidden = 128,
                  .vocab = 256,
                  .max_sequence = 32};
  config.train.sequence = 32;
  config.train.micro_batch = 2;
  config.train.global_batch = global_batch;
  config.train.activations = {activations::Policy::Rule::keep};
  config.numerics.dtype = DType::bf16;
  config.share.device_share = 0.0;
  return config;
}

/// Micro-batches of 16 sequences of 64 tokens, whose activations are most of what eight blocks
/// need.
inline config::RunConfig run_of_activations(std::int64_t global_batch) {
  auto config = small_run(8, global_batch);
  config.model.max_sequence = config.train.sequence = 64;
  config.train.micro_batch = 16;
  config.train.activations = config::RunConfig{}.train.activations;
  config.subgroup_size = 65536;
  config.share.device_chunk = 4096;
  config.share.device_gradients = 0;
  config.device.kind = config::DeviceKind::host;
  return config;
}

}  // namespace offstage::train
