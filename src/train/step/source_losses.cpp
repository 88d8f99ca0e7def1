#include "train/step/source_losses.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

namespace offstage::train {

std::string loss_text(MeanLoss const& mean, int digits) {
  return mean.targets > 0 ? fmt::format("{:.{}f}", mean.loss, digits) : "no target counts";
}

std::vector<std::string> short_names(std::vector<SourceLoss> const& sources) {
  std::vector<std::string> names;
  for (SourceLoss const& source : sources) {
    names.push_back(std::filesystem::path{source.path}.filename().string());
  }
  if (std::set<std::string>(names.begin(), names.end()).size() < names.size()) {
    std::ranges::transform(sources, names.begin(), &SourceLoss::path);
  }
  return names;
}

}  // namespace offstage::train
