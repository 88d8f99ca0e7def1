#include "generate/stop_texts.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace offstage::generate {

std::string StopTexts::add(std::string_view piece) {
  if (stopped_) {
    return {};
  }
  held_ += piece;
  std::size_t shown = std::string::npos;
  for (std::string const& stop : stops_) {
    shown = std::min(shown, held_.find(stop));
  }
  stopped_ = shown != std::string::npos;
  if (!stopped_) {
    // The longest end of the text that one of them begins with.
    shown = held_.size();
    for (std::string const& stop : stops_) {
      for (std::size_t size = std::min(held_.size(), stop.size() - 1); size > 0; --size) {
        if (held_.ends_with(std::string_view{stop}.substr(0, size))) {
          shown = std::min(shown, held_.size() - size);
          break;
        }
      }
    }
  }
  std::string text = held_.substr(0, shown);
  held_.erase(0, shown);
  return text;
}

std::string StopTexts::finish() {
  return stopped_ ? std::string{} : std::exchange(held_, {});
}

}  // namespace offstage::generate
