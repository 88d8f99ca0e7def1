#include "train/report/tensorboard_curves.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/printable.hpp"
#include "train/report/storage_totals.hpp"

namespace offstage::train {

std::vector<tensorboard::Scalar> curves_of(StepRecord const& record, double smoothed_loss,
                                           double tokens_per_second) {
  std::vector<tensorboard::Scalar> curves;
  auto const always = [&](std::string tag, double value) {
    curves.push_back({std::move(tag), value});
  };
  auto const known = [&](std::string tag, double value) {
    if (std::isfinite(value) && value > 0.0) {
      always(std::move(tag), value);
    }
  };
  always("loss/train", record.loss);
  // The mean goes on as if a loss that is no number had not been.
  if (std::isfinite(smoothed_loss) && std::isfinite(record.loss)) {
    always("loss/smoothed", smoothed_loss);
  }
  always("optimizer/norm", record.grad_norm);
  always("optimizer/rate", record.learning_rate);
  if (record.loss_scale != 1.0) {
    always("optimizer/loss_scale", record.loss_scale);
  }
  known("speed/tokens_per_s", tokens_per_second);
  known("speed/tflop_per_s", record.tflops);
  known("speed/mfu", record.mfu);
  always("seconds/step", record.step_seconds.count());
  always("seconds/forward", record.forward_seconds.count());
  always("seconds/backward", record.backward_seconds.count());
  always("seconds/update", record.update_seconds.count());
  known("seconds/step_predicted", record.predicted.count());
  for (PathStep const& path : record.storage.paths) {
    auto const name =
        fmt::format("{}{}", path.directory.starts_with('/') ? "" : "/", printable(path.directory));
    known("storage/read_gb_per_s" + name, transfer_rate(path.traffic.read) / 1e9);
    known("storage/write_gb_per_s" + name, transfer_rate(path.traffic.write) / 1e9);
    always("storage/busy" + name, busy_part(path, record.storage));
  }
  return curves;
}

std::vector<tensorboard::Scalar> validation_curves(MeanLosses const& losses) {
  std::vector<tensorboard::Scalar> curves{{"loss/validation", losses.all.loss}};
  if (losses.sources.size() > 1) {
    auto const names = short_names(losses.sources);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (losses.sources[i].mean.targets > 0) {
        curves.push_back(
            {fmt::format("loss/validation/{}", printable(names[i])), losses.sources[i].mean.loss});
      }
    }
  }
  return curves;
}

}  // namespace offstage::train
