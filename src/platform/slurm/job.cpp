#include "platform/slurm/job.hpp"

#include <fmt/format.h>

#include <array>

#include "base/printable.hpp"
#include "base/text.hpp"

namespace offstage::slurm {
namespace {

/// Slurm's ids have 32 bits, its array tasks and counts fewer.
constexpr std::int64_t largest_number = 4'294'967'295;
/// In the year 2255: the system clock counts nanoseconds in 64 bits.
constexpr std::int64_t last_second = 9'000'000'000;
/// Of nodes.
constexpr std::size_t longest_list = 1000;

std::optional<std::int64_t> number(std::string_view text, std::int64_t largest = largest_number) {
  auto const value = number_in<std::int64_t>(text);
  return value && *value >= 0 && *value <= largest ? value : std::nullopt;
}

std::string_view value_of(Environment const& environment, char const* name) {
  char const* const value = environment(name);
  return value != nullptr ? value : "";
}

std::optional<TimePoint> parse_calendar(std::string_view text) {
  constexpr std::string_view pattern = "0000-00-00T00:00:00";
  if (text.size() != pattern.size()) {
    return std::nullopt;
  }
  std::array<int, 6> fields{};
  std::size_t field = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    bool const digit = text[i] >= '0' && text[i] <= '9';
    if (pattern[i] == '0' ? !digit : text[i] != pattern[i]) {
      return std::nullopt;
    }
    if (digit) {
      fields[field] = fields[field] * 10 + (text[i] - '0');
    } else {
      ++field;
    }
  }
  auto const [year, month, day, hour, minute, second] = fields;
  std::chrono::year_month_day const date{std::chrono::year{year},
                                         std::chrono::month{static_cast<unsigned>(month)},
                                         std::chrono::day{static_cast<unsigned>(day)}};
  constexpr int last_year = 2250;
  if (!date.ok() || year > last_year || hour > 23 || minute > 59 || second > 60) {
    return std::nullopt;
  }
  return std::chrono::sys_days{date} + std::chrono::hours{hour} + std::chrono::minutes{minute} +
         std::chrono::seconds{second};
}

}  // namespace

std::optional<TimePoint> parse_time(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) {
    text.remove_suffix(1);
  }
  if (auto const seconds = number(text, last_second); seconds && *seconds > 0) {
    return TimePoint{std::chrono::seconds{*seconds}};
  }
  return parse_calendar(text);
}

std::optional<Job> job_of(Environment const& environment) {
  auto const get = [&](char const* name) { return value_of(environment, name); };
  auto const id = number(get("SLURM_JOB_ID"));
  if (!id) {
    return std::nullopt;
  }
  Job job;
  job.id = fmt::format("{}", *id);
  job.name = printable_name(get("SLURM_JOB_NAME"));
  job.restart_count = number(get("SLURM_RESTART_COUNT")).value_or(0);
  auto const array = number(get("SLURM_ARRAY_JOB_ID"));
  auto const task = number(get("SLURM_ARRAY_TASK_ID"));
  if (array && task) {
    job.array_job = fmt::format("{}", *array);
    job.array_task = task;
  }
  job.nodes = printable(get("SLURM_JOB_NODELIST"), longest_list);
  job.end = parse_time(get("SLURM_JOB_END_TIME"));
  return job;
}

std::string node_name(Environment const& environment, std::string const& host) {
  char const* const name = environment("SLURMD_NODENAME");
  return name != nullptr && *name != '\0' ? printable_name(name) : host;
}

bool has_slurm_pmix(Environment const& environment) {
  char const* const space = environment("PMIX_NAMESPACE");
  return space != nullptr && std::string_view{space}.starts_with("slurm.pmix.");
}

int given_gpus(Environment const& environment) {
  constexpr std::int64_t most = 1024;
  auto const count = number(value_of(environment, "SLURM_GPUS_ON_NODE"), most).value_or(0);
  bool const named = !value_of(environment, "SLURM_JOB_GPUS").empty() ||
                     !value_of(environment, "SLURM_STEP_GPUS").empty();
  return count == 0 && named ? 1 : static_cast<int>(count);
}

std::string describe(Job const& job) {
  std::string text = job.id;
  if (!job.name.empty()) {
    text += fmt::format(" ({})", job.name);
  }
  if (job.restart_count > 0) {
    text += fmt::format(", restart {}", job.restart_count);
  }
  if (job.array_task) {
    text += fmt::format(", task {} of array {}", *job.array_task, job.array_job);
  }
  return text;
}

}  // namespace offstage::slurm
