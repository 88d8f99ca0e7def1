#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace offstage::generate {

/// Passes a text on piece by piece until one of some texts comes in it, which is not passed on.
/// Holds back what may become one.
class StopTexts {
 public:
  /// None of them is empty.
  explicit StopTexts(std::vector<std::string> stops) : stops_{std::move(stops)} {}

  /// Returns the part of the text so far that may be shown now.
  [[nodiscard]] std::string add(std::string_view piece);
  /// Returns the text that was held back: nothing once stopped() is true.
  [[nodiscard]] std::string finish();
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_{};
};

}  // namespace offstage::generate
