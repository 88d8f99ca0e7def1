#include "train/report/wear.hpp"

#include <fmt/format.h>

#include "base/error.hpp"

namespace offstage::train {
namespace {

constexpr double seconds_of_day = 86400.0;
constexpr double days_of_year = 365.0;

std::string days_in_words(double days) {
  if (days < 10.0) {
    return fmt::format("{:.1f} days", days);
  }
  return days < 2.0 * days_of_year ? fmt::format("{:.0f} days", days)
                                   : fmt::format("{:.1f} years", days / days_of_year);
}

}  // namespace

std::string wear_in_words(Bytes written, Seconds step, Bytes endurance) {
  require(step.count() > 0.0, "wear_in_words: a step takes time");
  double const a_day = static_cast<double>(written) / step.count() * seconds_of_day;
  std::string text = fmt::format("{} written a step, {} a day", format_bytes(written),
                                 format_bytes(static_cast<Bytes>(a_day)));
  if (endurance > 0 && a_day > 0.0) {
    text += fmt::format(", which uses up endurance in {}",
                        days_in_words(static_cast<double>(endurance) / a_day));
  }
  return text;
}

}  // namespace offstage::train
