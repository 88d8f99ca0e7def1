#pragma once

#include <optional>
#include <string>

#include "config/run_config.hpp"
#include "state/model_shape.hpp"

namespace offstage::cli {

/// A model that is known from files.
struct KnownModel {
  state::ModelShape shape;
  /// "train.init-from=models/gpt2", "checkpoint runs/a/checkpoints/step-000000100".
  std::string origin;
  bool begins = false;  ///< the run begins from it and may add tokens to its vocabulary
};

/// The source from which the `model.*` keys can be taken: the checkpoint that checkpoint.resume
/// will take, else train.init-from. nullopt if there is neither. Looks at `checkpoint` and
/// `train.init_from` alone.
/// Errors: DataError if train.init-from or a named checkpoint cannot be read. A directory without a
///         complete checkpoint counts as nothing; the run itself reports the problem.
[[nodiscard]] std::optional<KnownModel> find_known_model(config::RunConfig const& config);

}  // namespace offstage::cli
