#pragma once

#include <optional>
#include <string>

#include "config/run_config.hpp"
#include "state/model_shape.hpp"

namespace offstage::cli {

/// A model that something on disk knows.
struct KnownModel {
  state::ModelShape shape;
  std::string
      origin;  ///< "train.init-from=models/gpt2", "checkpoint runs/a/checkpoints/step-000000100"
};

/// The source from which the `model.*` keys can be taken: the checkpoint that checkpoint.resume will take, else
/// train.init-from. nullopt if there is neither. Looks at `checkpoint` and `train.init_from` alone.
/// Errors: DataError if train.init-from or a named checkpoint cannot be read. A directory of
/// checkpoints of which none is complete counts as nothing: the run itself says what is wrong there.
[[nodiscard]] std::optional<KnownModel> find_known_model(config::RunConfig const& config);

}  // namespace offstage::cli
