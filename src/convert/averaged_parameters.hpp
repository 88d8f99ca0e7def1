#pragma once

#include <memory>
#include <span>
#include <vector>

#include "platform/memory/huge_buffer.hpp"
#include "state/initialize.hpp"

namespace offstage::convert {

/// The mean of the parameters of several models of one shape, as of checkpoints of one run.
/// Bits:   sums in FP64, in the order of the models, rounded once to FP32.
/// Memory: that of the models, some 600 KiB for each checkpoint, and 12 MiB.
class AveragedParameters final : public state::ParameterReader {
 public:
  /// One model or more.
  explicit AveragedParameters(std::vector<std::unique_ptr<state::ParameterReader>> models);

  [[nodiscard]] state::ModelShape const& shape() const override { return models_.front()->shape(); }
  void read(int layer, state::ChunkRange chunks, std::span<float> out) override;

 private:
  std::vector<std::unique_ptr<state::ParameterReader>> models_;
  memory::HugeBuffer one_;    ///< numbers of one model, aligned as a checkpoint is read best
  std::vector<double> sums_;  ///< sums of those before
};

}  // namespace offstage::convert
