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
  for (Validation const& each : run.validations) {
    best = std::isnan(best) ? each.loss : std::fmin(best, each.loss);
  }
  return best;
}

std::string shown(double value, char const* unit = "") {
  return std::isnan(value) ? "-" : in_short(value) + unit;
}

std::string how_it_ended(Run const& run) {
  std::string const& end = run.starts.empty() ? std::string{} : run.starts.back().end;
  return end.empty() ? "runs still, or was killed" : end == "done" ? end : "stopped: " + end;
}

/// Since the first start without what passed between starts.
Seconds time_in_run(Run const& run) {
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

std::string row_of(Run const& run, std::size_t number) {
  Step const* const last = run.last();
  auto const smoothed = smooth(curve(run, &Step::loss));
  std::string const dot = fmt::format(
      R"(<svg class="key" viewBox="0 0 26 14" aria-hidden="true"><path class="line bold {}" d="M1 7H25"/></svg>)",
      run_look(number));
  auto const best = best_validation(run);
  return fmt::format("<tr><th scope=\"row\">{}<b>{}</b><br><small>{}</small></th>", dot,
                     escaped(run.name), escaped(run.directory)) +
         cell(shown(run.parameters)) +
         cell(run.starts.empty() ? "-" : std::to_string(run.starts.back().ranks)) +
         cell(std::to_string(run.steps())) + cell(last == nullptr ? "-" : shown(last->tokens)) +
         cell(smoothed.empty() || std::isnan(smoothed.back().y)
                  ? "-"
                  : fmt::format("{:.4f}", smoothed.back().y)) +
         cell(std::isnan(best) ? "-" : fmt::format("{:.4f}", best)) +
         cell(shown(mean_tflops(run))) + cell(format_duration(time_in_run(run))) +
         cell(std::to_string(run.starts.size())) + cell(how_it_ended(run)) + "</tr>\n";
}

std::string summary(std::vector<Run> const& runs) {
  std::string text =
      "<section>\n<h2>Runs</h2>\n<div class=\"wide\"><table "
      "class=\"runs\"><thead><tr><th>run</th><th>parameters</th>"
      "<th>ranks</th><th>steps</th><th>tokens</th><th>loss, smoothed</th><th>best "
      "validation</th><th>TFLOP/s</th>"
      "<th>time in runs</th><th>starts</th><th>end</th></tr></thead><tbody>\n";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    text += row_of(runs[i], i);
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

/// Keys that not all runs have alike; where they are and what they read is always another place.
std::string differences(std::vector<Run> const& runs) {
  std::set<std::string> keys;
  for (Run const& run : runs) {
    for (auto const& [key, value] : run.settings) {
      bool const differs = std::ranges::any_of(runs, [&](Run const& other) {
        auto const found = other.settings.find(key);
        return found == other.settings.end() || found->second != value;
      });
      if (differs && key != "run.dir") {
        keys.insert(key);
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
      auto const found = run.settings.find(key);
      text += cell(found == run.settings.end() ? "default" : found->second);
    }
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

std::string configuration(std::vector<Run> const& runs) {
  std::string text = differences(runs);
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
