#pragma once

#include <string>

#include "config/run_config.hpp"

namespace offstage::config {

// Setters of keys of the table that take more than a line. Errors: UsageError without the
// key's name.

/// `50` means steps, `30min` time; 0: neither; `auto`: as the cost of a save asks for.
void set_checkpoint_every(RunConfig& config, std::string const& text);
/// The same of level 1, which needs one of them.
void set_local_every(RunConfig& config, std::string const& text);
void set_checkpoint_rate(RunConfig& config, std::string const& text);
/// A size, or `auto`.
void set_host_memory(RunConfig& config, std::string const& text);
/// Adds a path; clears them all if the text is empty.
void add_path(RunConfig& config, std::string const& text);
/// Validation walks through the files, so shares would have no meaning there.
void set_validation_files(RunConfig& config, std::string const& text);
/// A number, or `auto`.
void set_device_share(RunConfig& config, std::string const& text);
/// A number, or `auto`.
void set_device_resident(RunConfig& config, std::string const& text);
/// A place, or `auto`.
void set_parameter_home(RunConfig& config, std::string const& text);
void set_parameter_sharding(RunConfig& config, std::string const& text);
/// Whole chunks, as a subgroup's size.
void set_device_chunk(RunConfig& config, std::string const& text);
/// A size, or `auto`.
void set_device_gradients(RunConfig& config, std::string const& text);
/// A number, or `dynamic`.
void set_loss_scale(RunConfig& config, std::string const& text);

/// A name of a kernels::Optimizer.
void set_optimizer_kind(RunConfig& config, std::string const& text);

/// The default of model.ffn-hidden for the model's family.
[[nodiscard]] std::string default_ffn_hidden(RunConfig const& config);
/// The default of model.head-dim: model.hidden / model.heads, or 0 where that is no whole number.
[[nodiscard]] std::string default_head_dim(RunConfig const& config);

/// The default of model.rope-attention-factor: YaRN's for model.rope-factor, or 1.
[[nodiscard]] std::string default_attention_factor(RunConfig const& config);

}  // namespace offstage::config
