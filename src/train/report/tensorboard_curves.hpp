#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensorboard/event_file.hpp"
#include "train/report/metrics_records.hpp"
#include "train/step/source_losses.hpp"

namespace offstage::train {

/// Curves of a step for TensorBoard: loss/, optimizer/, speed/, seconds/ and, with storage paths,
/// storage/. Curves for which the step has no figure are left out. Pure.
[[nodiscard]] std::vector<tensorboard::Scalar> curves_of(StepRecord const& record,
                                                         double smoothed_loss,
                                                         double tokens_per_second);
/// The curve loss/validation, and where the data has several sources loss/validation/NAME of each
/// in which a target counts. Pure.
[[nodiscard]] std::vector<tensorboard::Scalar> validation_curves(MeanLosses const& losses);

}  // namespace offstage::train
