#include "train/metrics.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/regular_file.hpp"
#include "platform/aio/file.hpp"
#include "train/storage_report.hpp"

namespace offstage::train {
namespace {

constexpr char const* context = "run.dir";

bool is_kept(std::string const& line, std::int64_t last_step) {
  auto const record = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object()) {
    return false;
  }
  auto const up_to_last = [&](char const* key) {
    auto const step = record.find(key);
    return step != record.end() && step->is_number_integer() &&
           step->get<std::int64_t>() <= last_step;
  };
  return up_to_last("step") || up_to_last("start");
}

enum class Cut {
  nothing,
  rest,  ///< a torn line, a start without steps
  steps,
};

bool is_step(std::string const& line) {
  auto const record = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
  return record.is_object() && record.contains("step");
}

/// Writes the kept lines of `file` to `target`; what it left out.
Cut copy_kept(OutputFile const& file, OutputFile& target, std::int64_t last_step) {
  Cut cut = Cut::nothing;
  std::ifstream source{file.own_name()};
  if (!source) {
    throw IoError{"run.dir: cannot open", file.path(), errno};
  }
  for (std::string line; std::getline(source, line);) {
    bool const keep = is_kept(line, last_step);
    if (keep) {
      target.write(line + '\n');
    }
    // At the end of the file already: the newline is missing, the next record would join this line.
    if (!keep && is_step(line)) {
      cut = Cut::steps;
    } else if (cut == Cut::nothing && (!keep || source.eof())) {
      cut = Cut::rest;
    }
  }
  if (source.bad()) {
    throw IoError{"run.dir: cannot read", file.path(), errno};
  }
  return cut;
}

/// In GB/s, or NaN, which becomes null.
double shown_rate(tiers::DirectionTraffic const& traffic) {
  double const rate = transfer_rate(traffic) / 1e9;
  return rate > 0.0 ? rate : std::numeric_limits<double>::quiet_NaN();
}

nlohmann::ordered_json json_of(PathStep const& path, StorageStep const& step) {
  tiers::PathTraffic const& traffic = path.traffic;
  nlohmann::ordered_json object{{"path", path.directory}};
  if (path.emulated) {
    object["emulated"] = true;
  }
  object["read_bytes"] = traffic.read.bytes;
  object["write_bytes"] = traffic.write.bytes;
  object["read_gb_per_s"] = shown_rate(traffic.read);
  object["write_gb_per_s"] = shown_rate(traffic.write);
  object["busy"] = busy_share(path, step);
  object["lock_wait_seconds"] = lock_wait(path).count();
  object["longest_wait_seconds"] = longest_wait(path).count();
  object["resident_bytes"] = path.resident_bytes;
  return object;
}

void add_storage(nlohmann::ordered_json& line, StorageStep const& step) {
  if (step.paths.empty()) {
    return;
  }
  line["effective_gb_per_s"] = step.effective_rate > 0.0 ? step.effective_rate / 1e9
                                                         : std::numeric_limits<double>::quiet_NaN();
  line["hits"] = step.hits;
  line["misses"] = step.misses;
  line["host_bytes"] = step.host_bytes;
  auto& paths = line["paths"] = nlohmann::ordered_json::array();
  for (PathStep const& path : step.paths) {
    paths.push_back(json_of(path, step));
  }
}

/// Names of directories and jobs are their users': bytes that are no UTF-8 must not end the run, and none
/// beyond ASCII shall reach the terminal of who looks at the file.
std::string text_of(nlohmann::ordered_json const& line) {
  constexpr bool in_ascii = true;
  return line.dump(-1, ' ', in_ascii, nlohmann::ordered_json::error_handler_t::replace);
}

/// Makes the file's name durable.
void sync_directory_of(std::string const& path) {
  auto const directory = std::filesystem::path{path}.parent_path();
  try {
    aio::sync_directory(directory.empty() ? "." : directory.string());
  } catch (IoError const& error) {
    throw IoError{std::string{"run.dir: "} + error.what()};
  }
}

/// A name beside `path` that nothing has.
std::string free_name_beside(std::string const& path) {
  namespace fs = std::filesystem;
  fs::path const file{path};
  std::string const base =
      (file.parent_path() / ("passed-over-" + file.filename().string())).string();
  std::string name = base;
  for (int i = 2; fs::symlink_status(name).type() != fs::file_type::not_found; ++i) {
    name = fmt::format("{}.{}", base, i);
  }
  return name;
}

void rename_file(std::string const& from, std::string const& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    throw IoError{"run.dir: cannot replace", to, errno};
  }
}

/// Gives `fresh` its name `path` where a start was ended after it had set the file before aside.
void finish_earlier_cut(std::string const& fresh, std::string const& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;  // what cannot be looked at cannot be opened either, which is said then
  if (fs::symlink_status(path, ignored).type() == fs::file_type::not_found &&
      fs::symlink_status(fresh, ignored).type() == fs::file_type::regular) {
    rename_file(fresh, path);
  }
}

}  // namespace

MetricsFile::MetricsFile(std::string path, std::int64_t last_step, bool keeps_cut)
    : path_{std::move(path)} {
  std::string const fresh = path_ + ".new";
  finish_earlier_cut(fresh, path_);
  OutputFile current{context, path_, O_APPEND};
  OutputFile target{context, fresh, O_TRUNC};
  Cut const cut = copy_kept(current, target, last_step);
  current.close();
  if (cut != Cut::nothing) {
    target.sync();
    target.close();
    if (keeps_cut && cut == Cut::steps) {
      sync_directory_of(path_);  // a loss of power shall not leave neither of both names
      std::string const aside = free_name_beside(path_);
      rename_file(path_, aside);
      log::info("{} holds later steps of an earlier run; it is {} now", path_, aside);
    }
    rename_file(fresh, path_);
  } else if (::unlink(fresh.c_str()) != 0) {
    throw IoError{"run.dir: cannot remove", fresh, errno};
  }
  sync_directory_of(path_);
}

void MetricsFile::write(StepRecord const& record) {
  nlohmann::ordered_json line{{"step", record.step},
                              {"loss", record.loss},
                              {"grad_norm", record.grad_norm},
                              {"learning_rate", record.learning_rate},
                              {"tokens", record.tokens},
                              {"step_seconds", record.step_seconds.count()},
                              {"forward_seconds", record.forward_seconds.count()},
                              {"backward_seconds", record.backward_seconds.count()},
                              {"update_seconds", record.update_seconds.count()},
                              {"read_bytes", record.read_bytes},
                              {"write_bytes", record.write_bytes}};
  if (record.predicted > Seconds{}) {
    line["predicted_step_seconds"] = record.predicted.count();
  }
  if (record.tflops > 0.0) {
    line["tflops"] = record.tflops;
  }
  if (record.mfu > 0.0) {
    line["mfu"] = record.mfu;
  }
  if (record.loss_scale != 1.0) {
    line["loss_scale"] = record.loss_scale;
  }
  if (record.skipped) {
    line["skipped"] = true;
  }
  add_storage(line, record.storage);
  if (record.share.used) {
    line["device_share"] = record.share.share;
    line["expected_update_seconds"] = record.share.expected > Seconds{}
                                          ? record.share.expected.count()
                                          : std::numeric_limits<double>::quiet_NaN();
    line["device_gradient_bytes"] = record.share.gradients_held;
  }
  if (record.activations.out > 0) {
    line["activation_out_bytes"] = record.activations.out;
    line["activation_back_bytes"] = record.activations.back;
    line["activation_wait_seconds"] = record.activations.waited.count();
  }
  if (record.share.overlapped) {
    line["overlap"] = record.share.redone ? "redone" : "kept";
  }
  append(text_of(line));
}

void MetricsFile::write_start(StartRecord const& record) {
  auto const seconds = std::chrono::floor<std::chrono::seconds>(record.time);
  nlohmann::ordered_json line{
      {"start", record.step},
      {"time", fmt::format("{:%Y-%m-%dT%H:%M:%S}Z",
                           fmt::gmtime(slurm::TimePoint::clock::to_time_t(seconds)))},
      {"ranks", record.ranks},
      {"nodes", record.nodes}};
  if (record.job) {
    line["job"] = record.job->id;
    line["job_name"] = record.job->name;
    line["restart_count"] = record.job->restart_count;
    if (record.job->array_task) {
      line["array_job"] = record.job->array_job;
      line["array_task"] = *record.job->array_task;
    }
  }
  append(text_of(line));
}

void MetricsFile::write_validation(std::int64_t step, double valid_loss) {
  append(nlohmann::ordered_json{{"step", step}, {"valid_loss", valid_loss}}.dump());
}

void MetricsFile::sync() {
  OutputFile{context, path_, O_APPEND}.sync();
}

void MetricsFile::append(std::string const& line) {
  OutputFile file{context, path_, O_APPEND};  // anew for every line, see OutputFile::close
  file.write(line + '\n');
  file.close();
}

}  // namespace offstage::train
