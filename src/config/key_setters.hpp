#pragma once

#include <string>
#include <vector>

#include "config/run_config.hpp"

namespace offstage::config {

// Setters of keys of the table that take more than a line. Errors: UsageError without the
// key's name.

/// Sets checkpoint.every: `50` means steps, `30min` a time, 0 neither. `auto` follows the cost of a
/// save.
void set_checkpoint_every(RunConfig& config, std::string const& text);
/// Sets checkpoint.local-every. Level 1 needs steps, a time or `auto`.
void set_local_every(RunConfig& config, std::string const& text);
void set_checkpoint_rate(RunConfig& config, std::string const& text);
/// Sets a size, or `auto`.
void set_host_memory(RunConfig& config, std::string const& text);
/// Adds a path. An empty text clears all paths.
void add_path(RunConfig& config, std::string const& text);
/// Reads data.skip: `4000:51200,9000:25600` leaves so many sequences out behind these steps.
[[nodiscard]] std::vector<Skip> parse_skips(std::string const& text);
/// Sets files without weights, because validation reads every file from begin to end; or N%, that
/// part of the files of data.train, which stands before this key in the table.
void set_validation_files(RunConfig& config, std::string const& text);
/// Sets a number of steps, or of epochs: `3epochs`, `0.5epochs`, `1epoch`.
void set_steps(RunConfig& config, std::string const& text);
/// Sets a number, or `auto`.
void set_device_share(RunConfig& config, std::string const& text);
/// Sets a number, or `auto`.
void set_device_resident(RunConfig& config, std::string const& text);
/// Sets a place, or `auto`.
void set_parameter_home(RunConfig& config, std::string const& text);
void set_parameter_sharding(RunConfig& config, std::string const& text);
/// Sets a size in whole chunks, as for a subgroup.
void set_device_chunk(RunConfig& config, std::string const& text);
/// Sets a size, or `auto`.
void set_device_gradients(RunConfig& config, std::string const& text);
/// Sets a number, or `dynamic`.
void set_loss_scale(RunConfig& config, std::string const& text);

/// Sets the name of a kernels::Optimizer.
void set_optimizer_kind(RunConfig& config, std::string const& text);

/// The default of model.ffn-hidden for the model's family.
[[nodiscard]] std::string default_ffn_hidden(RunConfig const& config);
/// The default of model.head-dim: model.hidden / model.heads, or 0 where that is no whole number.
[[nodiscard]] std::string default_head_dim(RunConfig const& config);

/// The default of model.rope-attention-factor: YaRN's for model.rope-factor, or 1.
[[nodiscard]] std::string default_attention_factor(RunConfig const& config);

}  // namespace offstage::config
