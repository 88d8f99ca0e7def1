#include "train/report/earlier_metrics.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <ranges>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/regular_file.hpp"
#include "base/units.hpp"
#include "platform/aio/file.hpp"

namespace offstage::train {
namespace {

namespace fs = std::filesystem;

constexpr char const* metrics_context = "run.dir";
constexpr Bytes written_at_once = MiB;

using Record = nlohmann::ordered_json;

Record record_of(std::string const& line) {
  return Record::parse(line, nullptr, /*allow_exceptions=*/false);
}

std::optional<std::int64_t> integer_in(Record const& record, char const* key) {
  auto const found = record.find(key);
  return found != record.end() && found->is_number_integer()
             ? std::optional{found->get<std::int64_t>()}
             : std::nullopt;
}

/// Says which lines stay, one after the other.
class Keeper {
 public:
  explicit Keeper(std::int64_t last_step) : last_step_{last_step} {}

  /// The end of a start that stays does, too, also behind later steps: it says what became of it.
  [[nodiscard]] bool keeps(Record const& record) {
    if (!record.is_object()) {
      return false;
    }
    if (auto const start = integer_in(record, "start")) {
      start_stays_ = *start <= last_step_;
      return start_stays_;
    }
    auto const step = integer_in(record, "step");
    return (step && *step <= last_step_) || (record.contains("end") && start_stays_);
  }

 private:
  std::int64_t last_step_;
  bool start_stays_ = false;
};

/// The loss of a step's record; NaN: it is no number, or the record is none of a step.
double loss_in(Record const& record) {
  auto const loss = record.find("loss");
  return loss != record.end() && loss->is_number() ? loss->get<double>()
                                                   : std::numeric_limits<double>::quiet_NaN();
}

/// Kind of the lines that were left out; of several the last one here.
enum class Cut {
  nothing,
  rest,  ///< a torn line, a start without steps
  steps,
  saves,  ///< a save of level 2, and steps
};

struct Kept {
  Cut cut = Cut::nothing;
  Smoothed losses;
  std::optional<double> last_loss;  ///< loss of the point's step
};

Cut weight_of(Record const& record) {
  if (!record.is_object() || !record.contains("step")) {
    return Cut::rest;
  }
  return integer_in(record, "saved") == 2 ? Cut::saves : Cut::steps;
}

/// Calls work(line, record, is the line whole) for each line of the file `name`, which users call
/// `path`.
template <class Work>
void for_each_record(std::string const& name, std::string const& path, Work const& work) {
  std::ifstream source{name};
  if (!source) {
    throw IoError{"run.dir: cannot open", path, errno};
  }
  for (std::string line; std::getline(source, line);) {
    work(line, record_of(line), !source.eof());
  }
  if (source.bad()) {
    throw IoError{"run.dir: cannot read", path, errno};
  }
}

/// Writes the kept lines of the file `name`, which users call `path`, to `target`.
Kept copy_kept(std::string const& name, std::string const& path, OutputFile& target,
               std::int64_t last_step) {
  Kept kept;
  Keeper keeper{last_step};
  std::string text;  // of kept lines, not yet written: there may be millions
  for_each_record(name, path, [&](std::string const& line, Record const& record, bool is_whole) {
    if (!keeper.keeps(record)) {
      kept.cut = std::max(kept.cut, weight_of(record));
      return;
    }
    text += line;
    text += '\n';
    if (std::ssize(text) >= written_at_once) {
      target.write(text);
      text.clear();
    }
    double const loss = loss_in(record);
    kept.losses.add(loss);
    if (integer_in(record, "step") == last_step && record.contains("loss")) {
      kept.last_loss = loss;
    }
    // The line is at the end of the file and lacks its newline, so that the next record would join
    // it.
    if (!is_whole) {
      kept.cut = std::max(kept.cut, Cut::rest);
    }
  });
  target.write(text);
  return kept;
}

/// Makes the file's name durable.
void sync_name(std::string const& path) {
  try {
    aio::sync_name(path);
  } catch (IoError const& error) {
    throw IoError{std::string{"run.dir: "} + error.what()};
  }
}

/// The names of files that were set aside, oldest first, and the next one, which is free.
std::vector<std::string> names_aside(std::string const& path) {
  fs::path const file{path};
  std::string const base =
      (file.parent_path() / ("passed-over-" + file.filename().string())).string();
  std::vector<std::string> names{base};
  for (int i = 2; fs::symlink_status(names.back()).type() != fs::file_type::not_found; ++i) {
    names.push_back(fmt::format("{}.{}", base, i));
  }
  return names;
}

/// The newest file that was set aside whose record of the step has this loss; empty: there is none.
std::string aside_with(std::string const& path, std::int64_t step, double loss) {
  auto const names = names_aside(path);
  for (std::string const& name : names | std::views::reverse | std::views::drop(1)) {
    bool has_it = false;
    if (!is_file(name)) {
      continue;
    }
    for_each_record(name, name, [&](std::string const&, Record const& record, bool) {
      has_it = has_it || (record.is_object() && integer_in(record, "step") == step &&
                          loss_in(record) == loss);
    });
    if (has_it) {
      return name;
    }
  }
  return {};
}

/// Gives `fresh` its name `path` if an earlier start was ended after it had set the old file aside.
void finish_earlier_cut(std::string const& fresh, std::string const& path) {
  // A path that cannot be looked at cannot be opened either, which is the error then.
  std::error_code ignored;
  if (fs::symlink_status(path, ignored).type() == fs::file_type::not_found &&
      fs::symlink_status(fresh, ignored).type() == fs::file_type::regular) {
    rename_file("run.dir: cannot replace", fresh, path);
  }
}

/// Logs that the file is `aside` now, and why.
void say_aside(std::string const& path, std::string const& aside, std::string const& source,
               bool is_of_another_start, MetricsPoint const& point) {
  if (point.is_named) {
    log::info("{} holds later steps, or those of another run; it is {} now", path, aside);
  } else if (is_of_another_start) {
    log::warning(
        "{} tells of a start that left no checkpoint, and not of step {} from which this one goes "
        "on; it is {} now{}",
        path, point.step, aside,
        source.empty() ? "" : fmt::format(", and {} is in its place", source));
  } else {
    log::warning(
        "{} tells of a checkpoint after step {}, from which this start does not go on (was it "
        "passed over or removed, or is checkpoint.dir another one?); it is {} now",
        path, point.step, aside);
  }
}

}  // namespace

Smoothed bring_metrics_to(std::string const& path, MetricsPoint const& point) {
  std::string const fresh = path + ".new";
  finish_earlier_cut(fresh, path);
  OutputFile current{metrics_context, path, O_APPEND};
  OutputFile target{metrics_context, fresh, O_TRUNC | O_APPEND};
  Kept kept = copy_kept(current.own_name(), path, target, point.step);
  bool is_of_another_start = false;
  std::string source;
  if (point.loss && kept.last_loss != point.loss) {
    source = aside_with(path, point.step, *point.loss);
    is_of_another_start = kept.last_loss.has_value() || !source.empty();
  }
  if (is_of_another_start) {
    target.shorten(0);
    kept = source.empty() ? Kept{} : copy_kept(source, source, target, point.step);
  }
  current.close();
  bool const goes_aside =
      is_of_another_start || kept.cut == Cut::saves || (point.is_named && kept.cut == Cut::steps);
  if (goes_aside || kept.cut != Cut::nothing) {
    target.sync();
    target.close();
    if (goes_aside) {
      sync_name(path);  // after a loss of power one of the two names must be there
      std::string const aside = names_aside(path).back();
      rename_file("run.dir: cannot replace", path, aside);
      say_aside(path, aside, source, is_of_another_start, point);
    }
    rename_file("run.dir: cannot replace", fresh, path);
  } else if (::unlink(fresh.c_str()) != 0) {
    throw IoError{"run.dir: cannot remove", fresh, errno};
  }
  sync_name(path);
  return kept.losses;
}

}  // namespace offstage::train
