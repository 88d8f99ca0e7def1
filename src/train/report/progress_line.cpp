#include "train/report/progress_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

namespace offstage::train {
namespace {

constexpr std::size_t longest_bar = 24;
constexpr std::size_t shortest_bar = 4;

std::string in_words(double loss) {
  return std::isnan(loss) ? "nan"
                          : fmt::format("{:.4f}", loss);  // of a NaN's sign nobody wants to know
}

}  // namespace

std::vector<log::Styled> progress_line(ProgressFigures const& progress, std::size_t width,
                                       bool colours) {
  auto const& [step, steps, loss, smoothed, speed, left] = progress;
  enum Part : std::size_t { percent, step_of, loss_now, tokens, time_left, count };
  std::array<log::Styled, count> const texts{
      {{fmt::format(" {:>3} %", 100 * step / steps), log::Style::bold},
       {fmt::format("  step {}/{}", step, steps)},
       {"  loss " + in_words(std::isfinite(loss) ? smoothed : loss), log::Style::bold},
       {fmt::format("  {:.0f} tokens/s", speed)},
       {"  left " + format_duration(left), log::Style::dim}}};
  std::array<bool, count> shown{true, true, true, true, true};
  std::size_t least_bar = shortest_bar;
  auto const used = [&] {
    std::size_t columns = 0;
    for (std::size_t i = 0; i < count; ++i) {
      columns += shown[i] ? texts[i].text.size() : 0;
    }
    return columns;
  };
  for (Part const next : {tokens, percent, loss_now, time_left, step_of}) {
    if (used() + least_bar <= width) {
      break;
    }
    shown[next] = false;
    least_bar = shown[percent] ? shortest_bar : 0;
  }
  std::vector<log::Styled> parts;
  if (shown[percent]) {
    std::size_t const bar = std::min(longest_bar, width - used());
    std::size_t const done = bar * static_cast<std::size_t>(step) / static_cast<std::size_t>(steps);
    parts.push_back({std::string(done, colours ? ' ' : '#'), log::Style::bar});
    parts.push_back({std::string(bar - done, colours ? ' ' : '-'), log::Style::rest});
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (shown[i]) {
      parts.push_back(texts[i]);
    }
  }
  return parts;
}

}  // namespace offstage::train
