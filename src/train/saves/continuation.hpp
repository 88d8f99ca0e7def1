#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.hpp"

namespace offstage::train {

// What a run that goes on from a checkpoint is told of the one that wrote it. All pure; none
// throws. `configuration`: checkpoint::Meta::configuration, lines KEY=VALUE.

/// Meta::configuration of a run that has seen so many tokens.
[[nodiscard]] std::string text_of(std::vector<config::Setting> const& settings,
                                  std::int64_t tokens);

/// Tokens that the run has seen which wrote the checkpoint. An older one does not say: then
/// `samples` times its train.sequence, or where that is unknown times `sequence`.
[[nodiscard]] std::int64_t tokens_of(std::string_view configuration, std::int64_t samples,
                                     std::int64_t sequence);

/// A table, a key that weights depend on per row, with its value then and now; and a line that
/// names other keys that changed. Empty: nothing has. Keys that the checkpoint's program did not
/// know are left out where they are defaults.
[[nodiscard]] std::vector<std::string> describe_changes(
    std::string_view configuration, std::vector<config::Setting> const& settings);

/// Returns true if the validations of the run that wrote the checkpoint were of other data, or of
/// other parts of them: their losses do not compare with those to come.
[[nodiscard]] bool validates_otherwise(std::string_view configuration,
                                       std::vector<config::Setting> const& settings);

/// Where step `step` + 1 is to be taken at a higher rate than step `step` was, `last_rate`, though
/// the warm-up is over: a sentence that says so, and what goes on without a jump. Empty: it is not.
[[nodiscard]] std::string advice_on_rate(config::OptimizerConfig const& optimizer,
                                         std::int64_t steps, std::int64_t step, double last_rate);

}  // namespace offstage::train
