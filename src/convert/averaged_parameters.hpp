#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "state/initialize.hpp"

namespace offstage::convert {

/// The mean of the parameters of several models of one shape, as of checkpoints of one run.
/// Bits:   sums in FP64, in the order of the models, rounded once to FP32.
/// Memory: that of the models, and 12 MiB.
class AveragedParameters final : public state::ParameterReader {
 public:
  /// One model or more.
  explicit AveragedParameters(std::vector<std::unique_ptr<state::ParameterReader>> models);

  [[nodiscard]] state::ModelShape const& shape() const override { return models_.front()->shape(); }
  void read(int layer, state::ChunkRange chunks, std::span<float> out) override;

 private:
  std::vector<std::unique_ptr<state::ParameterReader>> models_;
  std::vector<float> one_;    ///< numbers of one model
  std::vector<double> sums_;  ///< sums of those before
};

}  // namespace offstage::convert
