#include "report/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <ranges>

#include "base/error.hpp"
#include "base/path.hpp"
#include "base/regular_file.hpp"

namespace offstage::report {
namespace {

using Json = nlohmann::json;

double number(Json const& record, char const* key) {
  auto const found = record.find(key);
  return found != record.end() && found->is_number() ? found->get<double>() : unknown;
}

std::int64_t whole(Json const& record, char const* key) {
  double const value = number(record, key);
  return std::abs(value) < 1e18 ? static_cast<std::int64_t>(value) : 0;
}

std::string words(Json const& record, char const* key) {
  auto const found = record.find(key);
  return found != record.end() && found->is_string() ? found->get<std::string>() : std::string{};
}

std::vector<std::string> list(Json const& record, char const* key) {
  std::vector<std::string> all;
  if (auto const found = record.find(key); found != record.end() && found->is_array()) {
    for (Json const& each : *found) {
      all.push_back(each.is_string() ? each.get<std::string>() : std::string{});
    }
  }
  return all;
}

bool truth(Json const& record, char const* key, bool otherwise) {
  auto const found = record.find(key);
  return found != record.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}

/// The objects of a list, where they stand: a copy of one that is nested deeply would not fit the
/// stack.
std::vector<Json const*> objects(Json const& record, char const* key) {
  std::vector<Json const*> all;
  if (auto const found = record.find(key); found != record.end() && found->is_array()) {
    for (Json const& each : *found) {
      if (each.is_object()) {
        all.push_back(&each);
      }
    }
  }
  return all;
}

/// Validation::sources.
std::string losses_of_sources(Json const& record) {
  constexpr std::size_t most = 8;
  std::string all;
  auto const sources = objects(record, "valid_losses");
  for (Json const* const source : sources | std::views::take(most)) {
    double const loss = number(*source, "loss");
    all += fmt::format("{}{} {}", all.empty() ? "" : ", ",
                       std::filesystem::path{words(*source, "path")}.filename().string(),
                       std::isnan(loss) ? "no target counts" : fmt::format("{:.4f}", loss));
  }
  return sources.size() > most ? fmt::format("{}, and {} more", all, sources.size() - most) : all;
}

std::vector<Change> changes(Json const& record) {
  std::vector<Change> all;
  auto const found = record.find("changed");
  if (found == record.end() || !found->is_object()) {
    return all;
  }
  for (auto const& [key, values] : found->items()) {
    auto const both = list(*found, key.c_str());
    if (both.size() == 2) {
      all.push_back({key, both[0], both[1]});
    }
  }
  return all;
}

double known_or(double value, double other) {
  return std::isnan(value) ? other : value;
}

/// Seconds of the calendar, of "2026-11-21T17:47:48Z"; unknown: it is not written so.
double seconds_of(std::string const& time) {
  std::tm parts{};
  char const* const end = ::strptime(time.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return end != nullptr && *end == '\0' ? static_cast<double>(::timegm(&parts)) : unknown;
}

class Reader {
 public:
  explicit Reader(Run& run) : run_{run} {}

  void take(Json const& record) {
    if (record.contains("start")) {
      start(record);
      return;
    }
    if (run_.starts.empty()) {
      run_.starts.emplace_back();  // of a version that did not record starts
    }
    if (record.contains("loss")) {
      step(record);
    } else if (record.contains("valid_loss")) {
      run_.validations.push_back({whole(record, "step"), number(record, "valid_loss"),
                                  losses_of_sources(record), truth(record, "counts", true)});
    } else if (record.contains("saved")) {
      save(record);
    } else if (auto const found = record.find("forecast");
               found != record.end() && found->is_object()) {
      run_.forecasts.push_back({.given = truth(*found, "given", true),
                                .after = whole(record, "step"),
                                .start = run_.starts.size() - 1,
                                .step = number(*found, "step_seconds"),
                                .forward = number(*found, "forward_seconds"),
                                .backward = number(*found, "backward_seconds"),
                                .update = number(*found, "update_seconds")});
    } else if (record.contains("end")) {
      now().end = words(record, "end");
      bool const behind_kept_steps = whole(record, "step") > last_step();
      if (!behind_kept_steps) {
        reached(number(record, "elapsed_seconds"));
      }
      memory(record);
      run_.advice = list(record, "advice");
    }
  }

 private:
  [[nodiscard]] Start& now() { return run_.starts.back(); }

  /// The start's last step that is there.
  [[nodiscard]] std::int64_t last_step() {
    return now().steps.empty() ? now().step : now().steps.back().number;
  }

  /// Something happened so long after the start; returns when that was.
  double reached(double elapsed) {
    double const at = now().at + known_or(elapsed, now().last_at - now().at);
    now().last_at = std::max(now().last_at, at);
    return at;
  }

  void start(Json const& record) {
    double const calendar = seconds_of(words(record, "time"));
    if (run_.starts.empty()) {
      origin_ = calendar;
    }
    Start start{.step = whole(record, "start"),
                .at = calendar - origin_,
                .time = words(record, "time"),
                .ranks = whole(record, "ranks"),
                .nodes = list(record, "nodes"),
                .job = words(record, "job"),
                .from = words(record, "from"),
                .changes = changes(record),
                .end = {},
                .steps = {},
                .last_at = {}};
    // Clocks of nodes differ, and times are whole seconds: nothing begins before the last ended.
    double const before = run_.starts.empty() ? 0.0 : now().last_at;
    start.last_at = start.at = std::max(known_or(start.at, before), before);
    run_.starts.push_back(std::move(start));
    run_.parameters = known_or(number(record, "parameters"), run_.parameters);
    if (truth(record, "validations_begin_anew", false)) {
      run_.first_comparable = run_.validations.size();
    }
    run_.advice.clear();
    memory(record);
    for (Json const* const path : objects(record, "paths")) {
      PathTotals& totals = path_of(words(*path, "path"));
      totals.can_read = number(*path, "can_read_gb_per_s");
      totals.can_write = number(*path, "can_write_gb_per_s");
      totals.sharing_transfers = known_or(number(*path, "sharing_transfers"), 1.0);
    }
  }

  void step(Json const& record) {
    Step step{.number = whole(record, "step"),
              .loss = number(record, "loss"),
              .norm = number(record, "grad_norm"),
              .rate = number(record, "learning_rate"),
              .tokens = number(record, "tokens"),
              .seconds = number(record, "step_seconds"),
              .forward = number(record, "forward_seconds"),
              .backward = number(record, "backward_seconds"),
              .update = number(record, "update_seconds"),
              .predicted = number(record, "predicted_step_seconds"),
              .tflops = number(record, "tflops"),
              .mfu = number(record, "mfu"),
              .loss_scale = known_or(number(record, "loss_scale"), 1.0),
              .skipped = truth(record, "skipped", false)};
    double const elapsed = number(record, "elapsed_seconds");
    step.at = reached(known_or(elapsed, now().last_at - now().at + known_or(step.seconds, 0.0)));
    // Traffic of paths is counted from the end of the start's step before.
    double const counted =
        now().steps.empty() ? known_or(step.seconds, 0.0) : step.at - now().steps.back().at;
    now().steps.push_back(step);
    for (Json const* const path : objects(record, "paths")) {
      PathTotals& totals = path_of(words(*path, "path"));
      totals.emulated = truth(*path, "emulated", false);
      auto const add = [&](char const* bytes, char const* rate, double& sum, double& seconds) {
        double const moved = known_or(number(*path, bytes), 0.0);
        sum += moved;
        seconds += known_or(moved / (1e9 * number(*path, rate)), 0.0);
      };
      add("read_bytes", "read_gb_per_s", totals.read_bytes, totals.read_seconds);
      add("write_bytes", "write_gb_per_s", totals.write_bytes, totals.write_seconds);
      totals.busy_seconds += known_or(number(*path, "busy"), 0.0) * counted;
      totals.counted_seconds += counted;
    }
  }

  void save(Json const& record) {
    run_.saves.push_back({.step = whole(record, "step"),
                          .level = static_cast<int>(whole(record, "saved")),
                          .seconds = known_or(number(record, "seconds"), 0.0),
                          .stood_still = known_or(number(record, "stood_still_seconds"), 0.0),
                          .at = reached(number(record, "elapsed_seconds"))});
  }

  void memory(Json const& record) {
    if (!record.contains("host_memory_limit")) {
      return;
    }
    run_.memory = {.host_limit = number(record, "host_memory_limit"),
                   .host_planned = number(record, "host_memory_planned"),
                   .host_libraries = number(record, "host_memory_libraries"),
                   .host_peak = number(record, "host_memory_peak"),
                   .device_limit = number(record, "device_memory_limit"),
                   .device_planned = number(record, "device_memory_planned"),
                   .device_peak = number(record, "device_memory_peak")};
  }

  [[nodiscard]] PathTotals& path_of(std::string const& directory) {
    auto const found = std::ranges::find(run_.paths, directory, &PathTotals::directory);
    if (found != run_.paths.end()) {
      return *found;
    }
    run_.paths.push_back({.directory = directory});
    return run_.paths.back();
  }

  Run& run_;
  double origin_ = unknown;
};

}  // namespace

std::string text_beside(std::string const& directory, char const* name) {
  constexpr std::size_t most = 1 << 20;
  auto const path = (std::filesystem::path{directory} / name).string();
  if (!is_file(path)) {
    return {};  // a pipe would wait, and a device never end
  }
  std::ifstream file{path};
  std::string text(most, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return file.bad() ? std::string{} : text;
}

std::int64_t Run::steps() const {
  Step const* const newest = last();
  return newest == nullptr ? 0 : newest->number;
}

Step const* Run::last() const {
  for (auto start = starts.rbegin(); start != starts.rend(); ++start) {
    if (!start->steps.empty()) {
      return &start->steps.back();
    }
  }
  return nullptr;
}

Run read_run(std::string const& directory) {
  namespace fs = std::filesystem;
  fs::path const folder{directory};
  fs::path const metrics = folder / "metrics.jsonl";
  if (!is_file(metrics.string())) {
    throw DataError{fmt::format(
        "{}: {}; give the run.dir of a run that has begun", directory,
        is_directory(directory) ? "there is no metrics.jsonl" : "there is no such directory")};
  }
  std::ifstream file{metrics};
  if (!file) {
    throw IoError{"report: cannot open", metrics.string(), errno};
  }
  Run run;
  run.directory = directory;
  run.name = without_slash(fs::absolute(folder).lexically_normal()).filename().string();
  Reader reader{run};
  std::string line;
  std::int64_t lines = 0;
  while (std::getline(file, line) && !file.eof()) {
    ++lines;
    auto const record = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (record.is_object()) {
      reader.take(record);
    } else if (run.bad_lines.count++ == 0) {
      run.bad_lines.first = lines;
    }
  }
  if (file.bad()) {
    throw IoError{"report: cannot read", metrics.string(), errno};
  }
  if (lines > 0 && run.bad_lines.count == lines) {
    throw DataError{
        fmt::format("{}:1: this is no JSON object, and no other line is; give the run.dir of a run",
                    metrics.string())};
  }
  run.header = text_beside(directory, "header.txt");
  return run;
}

void tell_apart(std::vector<Run>& runs) {
  std::vector<std::string> names;
  std::ranges::transform(runs, std::back_inserter(names), &Run::name);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (std::ranges::count(names, names[i]) > 1) {
      runs[i].name = runs[i].directory;
    }
  }
}

}  // namespace offstage::report
