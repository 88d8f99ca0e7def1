#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace offstage::train {

/// A mean over targets that count.
struct MeanLoss {
  double loss{};           ///< nats per target; not a number if no target counts
  std::int64_t targets{};  ///< targets that count, of all ranks
};
/// The mean over the windows of one source of the data.
struct SourceLoss {
  std::string path;  ///< path of SourceWindows
  MeanLoss mean;
};
/// The mean over all windows, and of each source that has some of them.
struct MeanLosses {
  MeanLoss all;
  std::vector<SourceLoss> sources;  ///< in their order
};

/// "2.0134", or "no target counts".
[[nodiscard]] std::string loss_text(MeanLoss const& mean, int digits);

/// Names of the sources for people: the last parts of their paths, or where two of these are alike
/// the whole paths. A path that was given twice has one name twice.
[[nodiscard]] std::vector<std::string> short_names(std::vector<SourceLoss> const& sources);

}  // namespace offstage::train
