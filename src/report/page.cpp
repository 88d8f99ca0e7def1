#include "report/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/units.hpp"
#include "base/version.hpp"
#include "report/parts.hpp"
#include "report/sections.hpp"
#include "report/style.hpp"

namespace offstage::report {
namespace {

std::string cell(std::string const& text) {
  return fmt::format("<td>{}</td>", escaped(text));
}

double best_validation(Run const& run) {
  double best = unknown;
  for (std::size_t i = run.first_comparable; i < run.validations.size(); ++i) {
    Validation const& each = run.validations[i];
    if (each.counts) {
      best = std::isnan(best) ? each.loss : std::fmin(best, each.loss);
    }
  }
  return best;
}

std::string shown(double value, char const* unit = "") {
  return std::isnan(value) ? "-" : in_short(value) + unit;
}

std::string how_it_ended(Run const& run) {
  std::string const& end = run.starts.empty() ? std::string{} : run.starts.back().end;
  bool const is_whole = end == "done" || end.starts_with("failed: ");
  return end.empty() ? "runs still, or was killed" : is_whole ? end : "stopped: " + end;
}

/// Time since the first start, without what passed between starts, and without steps that were lost
/// and done again: their records are cut.
Seconds time_of_kept_steps(Run const& run) {
  double seconds = 0.0;
  for (Start const& start : run.starts) {
    seconds += start.last_at - start.at;
  }
  return Seconds{seconds};
}

/// The mean of all steps that say it, weighted by their time.
double mean_tflops(Run const& run) {
  double work = 0.0, seconds = 0.0;
  for (Start const& start : run.starts) {
    for (Step const& step : start.steps) {
      if (std::isfinite(step.tflops) && std::isfinite(step.seconds)) {
        work += step.tflops * step.seconds;
        seconds += step.seconds;
      }
    }
  }
  return seconds > 0.0 ? work / seconds : unknown;
}

/// The last loss, smoothed, or since when losses are no numbers.
std::string last_loss(Run const& run) {
  auto const smoothed = smooth(curve(run, &Step::loss));
  if (smoothed.empty()) {
    return "-";
  }
  if (std::isfinite(smoothed.back().y)) {
    return fmt::format("{:.4f}", smoothed.back().y);
  }
  auto const last_good = std::find_if(smoothed.rbegin(), smoothed.rend(),
                                      [](Point const& point) { return std::isfinite(point.y); });
  return fmt::format("not finite since step {:.0f}", last_good.base()->x);
}

std::int64_t skipped_steps(Run const& run) {
  std::int64_t count = 0;
  for (Start const& start : run.starts) {
    count += std::ranges::count_if(start.steps, &Step::skipped);
  }
  return count;
}

/// How many updates were skipped, and the loss scale that the last step had.
std::string skipped_in_words(Run const& run) {
  auto const count = skipped_steps(run);
  Step const* const last = run.last();
  bool const scaled = count > 0 && last != nullptr && last->loss_scale != 1.0;
  return scaled ? fmt::format("{}, loss scale {}", count, in_short(last->loss_scale))
                : std::to_string(count);
}

/// `with_skipped`: the row has a cell on skipped steps.
std::string row_of(Run const& run, std::size_t number, bool with_skipped) {
  Step const* const last = run.last();
  std::string const dot = fmt::format(
      R"(<svg class="key" viewBox="0 0 26 14" aria-hidden="true"><path class="line bold {}" d="M1 7H25"/></svg>)",
      run_look(number));
  auto const best = best_validation(run);
  return fmt::format("<tr><th scope=\"row\">{}<b>{}</b><br><small>{}</small></th>", dot,
                     escaped(run.name), escaped(run.directory)) +
         cell(shown(run.parameters)) +
         cell(run.starts.empty() ? "-" : std::to_string(run.starts.back().ranks)) +
         cell(std::to_string(run.steps())) + (with_skipped ? cell(skipped_in_words(run)) : "") +
         cell(last == nullptr ? "-" : shown(last->tokens)) + cell(last_loss(run)) +
         cell(std::isnan(best) ? "-" : fmt::format("{:.4f}", best)) +
         cell(shown(mean_tflops(run))) + cell(format_duration(time_of_kept_steps(run))) +
         cell(std::to_string(run.starts.size())) + cell(how_it_ended(run)) + "</tr>\n";
}

std::string summary(std::vector<Run> const& runs) {
  bool const with_skipped =
      std::ranges::any_of(runs, [](Run const& run) { return skipped_steps(run) > 0; });
  std::string text = fmt::format(
      "<section>\n<h2>Runs</h2>\n<p>TFLOP/s are of steps alone, without saves and validations. The "
      "time has both, and leaves out steps that were lost and done again.{}</p>\n"
      "<div class=\"wide\"><table "
      "class=\"runs\"><thead><tr><th>run</th><th>parameters</th>"
      "<th>ranks</th><th>steps</th>{}<th>tokens</th><th>loss, smoothed</th><th>best "
      "validation</th><th>TFLOP/s</th>"
      "<th>time of kept steps</th><th>starts</th><th>end</th></tr></thead><tbody>\n",
      with_skipped ? " A step is skipped, so that weights stay as they are, if its loss or its "
                     "gradient is not finite, or if no target of its batch counts."
                   : "",
      with_skipped ? "<th>of these skipped</th>" : "");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    text += row_of(runs[i], i, with_skipped);
  }
  text += "</tbody></table></div>\n";
  for (Run const& run : runs) {
    for (std::string const& sentence : run.advice) {
      text += fmt::format("<p class=\"advice\">{}{}</p>\n",
                          runs.size() > 1 ? "<b>" + escaped(run.name) + "</b>: " : "",
                          escaped(sentence));
    }
  }
  return text + "</section>\n";
}

/// A key's value; a run without settings, or of a version without the key, has none that is known.
std::string setting_of(Run const& run, std::string const& key) {
  auto const found = run.settings.find(key);
  return found == run.settings.end() ? "not known"
         : found->second.empty()     ? "not set"
                                     : found->second;
}

/// Keys that not all runs whose settings are known have alike; where they are is always another
/// place.
std::string differences(std::vector<Run> const& runs) {
  std::set<std::string> keys;
  for (Run const& run : runs) {
    for (auto const& setting : run.settings) {
      bool const differs = std::ranges::any_of(runs, [&](Run const& other) {
        auto const found = other.settings.find(setting.first);
        return !other.settings.empty() && (found == other.settings.end() || *found != setting);
      });
      if (differs && setting.first != "run.dir") {
        keys.insert(setting.first);
      }
    }
  }
  if (keys.empty()) {
    return {};
  }
  std::string text = "<h3>What differs</h3>\n<div class=\"wide\"><table><thead><tr><th>key</th>";
  for (Run const& run : runs) {
    text += fmt::format("<th>{}</th>", escaped(run.name));
  }
  text += "</tr></thead><tbody>\n";
  for (std::string const& key : keys) {
    text += fmt::format("<tr><th scope=\"row\">{}</th>", escaped(key));
    for (Run const& run : runs) {
      text += cell(setting_of(run, key));
    }
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

/// The keys that later starts of a run changed.
std::string stages(Run const& run) {
  std::string rows;
  for (Start const& start : run.starts) {
    if (!start.from.empty()) {
      rows += fmt::format("<tr>{}{}{}{}</tr>\n", cell(std::to_string(start.step)),
                          cell("checkpoint.resume"), cell(""), cell(start.from));
    }
    for (Change const& change : start.changes) {
      rows += fmt::format("<tr>{}{}{}{}</tr>\n", cell(std::to_string(start.step)), cell(change.key),
                          cell(change.then), cell(change.now));
    }
  }
  return rows.empty() ? rows
                      : fmt::format(
                            "<h3>What starts of {} changed</h3>\n<div "
                            "class=\"wide\"><table><thead><tr><th>after step</th><th>key</th>"
                            "<th>before</th><th>from then on</th></tr></thead><tbody>\n{}</tbody>"
                            "</table></div>\n",
                            escaped(run.name), rows);
}

std::string configuration(std::vector<Run> const& runs) {
  std::string text = differences(runs);
  for (Run const& run : runs) {
    text += stages(run);
  }
  for (Run const& run : runs) {
    if (!run.header.empty()) {
      text += fmt::format(
          "<details><summary>{}, as its last start described "
          "itself</summary><pre>{}</pre></details>\n",
          escaped(run.name), escaped(run.header));
    }
  }
  return text.empty() ? text : "<section>\n<h2>Configuration</h2>\n" + text + "</section>\n";
}

}  // namespace

std::string page(std::vector<Run> const& runs) {
  std::string names;
  for (Run const& run : runs) {
    names += (names.empty() ? "" : ", ") + run.name;
  }
  std::string text = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n"
      "<title>{} - Offstage</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n"
      "<header><h1>{}</h1><p>A report of Offstage {}.</p></header>\n",
      escaped(names), page_style, escaped(names), escaped(version()));
  text += summary(runs) + loss_section(runs) + phase_section(runs) + forecast_section(runs) +
          storage_section(runs) + memory_section(runs) + time_section(runs) + speed_section(runs) +
          configuration(runs);
  return text + "</main>\n</body>\n</html>\n";
}

}  // namespace offstage::report
