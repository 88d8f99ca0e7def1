#include "train/report/metrics.hpp"

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
#include "base/pauses.hpp"
#include "base/regular_file.hpp"
#include "platform/aio/file.hpp"
#include "train/report/json_line.hpp"
#include "train/report/storage_totals.hpp"

namespace offstage::train {
namespace {

using tiers::PathTraffic;

constexpr char const* context = "run.dir";

/// Bytes of all paths in one direction.
Bytes moved_bytes(StorageStep const& step, tiers::DirectionTraffic PathTraffic::*direction) {
  Bytes all = 0;
  for (PathStep const& path : step.paths) {
    all += (path.traffic.*direction).bytes;
  }
  return all;
}

/// A rate in GB/s, or NaN, which becomes null.
double shown_rate(double bytes_per_second) {
  return bytes_per_second > 0.0 ? bytes_per_second / 1e9 : std::numeric_limits<double>::quiet_NaN();
}

nlohmann::ordered_json json_of(PathStep const& path, StorageStep const& step) {
  tiers::PathTraffic const& traffic = path.traffic;
  nlohmann::ordered_json object{{"path", path.directory}};
  if (path.emulated) {
    object["emulated"] = true;
  }
  object["read_bytes"] = traffic.read.bytes;
  object["write_bytes"] = traffic.write.bytes;
  object["read_gb_per_s"] = shown_rate(transfer_rate(traffic.read));
  object["write_gb_per_s"] = shown_rate(transfer_rate(traffic.write));
  object["busy"] = busy_part(path, step);
  object["lock_wait_seconds"] = lock_wait(path).count();
  object["longest_wait_seconds"] = longest_wait(path).count();
  object["resident_bytes"] = path.resident_bytes;
  return object;
}

void add_storage(nlohmann::ordered_json& line, StorageStep const& step) {
  if (step.paths.empty()) {
    return;
  }
  line["effective_gb_per_s"] = shown_rate(step.effective_rate);
  line["hits"] = step.hits;
  line["misses"] = step.misses;
  line["host_bytes"] = step.host_bytes;
  auto& paths = line["paths"] = nlohmann::ordered_json::array();
  for (PathStep const& path : step.paths) {
    paths.push_back(json_of(path, step));
  }
}

void add_memory(nlohmann::ordered_json& line, MemoryRecord const& memory) {
  line["host_memory_limit"] = memory.host_limit;
  line["host_memory_planned"] = memory.host_planned;
  line["host_memory_libraries"] = memory.host_libraries;
  line["device_memory_limit"] =
      memory.device_limit > 0 ? nlohmann::ordered_json(memory.device_limit) : nullptr;
  line["device_memory_planned"] = memory.device_planned;
  if (memory.host_peak > 0) {
    line["host_memory_peak"] = memory.host_peak;
    line["device_memory_peak"] = memory.device_peak;
  }
}

nlohmann::ordered_json json_of(EndRecord const& record) {
  return {{"step", record.step},
          {"end", record.end},
          {"reason", record.reason},
          {"exit", static_cast<int>(record.exit)},
          {"elapsed_seconds", record.elapsed.count()}};
}

std::string line_of(nlohmann::ordered_json const& record) {
  return json_line(record) + '\n';
}

/// The file, opened to add to it. A file system that fails over for a moment ends no run.
OutputFile opened(std::string const& path) {
  return try_patiently([&] { return OutputFile{context, path, O_APPEND}; });
}

}  // namespace

MetricsFile::MetricsFile(std::string path, MetricsPoint const& point)
    : path_{std::move(path)}, losses_{bring_metrics_to(path_, point)} {}

void MetricsFile::write(StepRecord const& record) {
  losses_.add(record.loss);
  nlohmann::ordered_json line{{"step", record.step},
                              {"loss", record.loss},
                              {"grad_norm", record.grad_norm},
                              {"learning_rate", record.learning_rate},
                              {"tokens", record.tokens},
                              {"step_seconds", record.step_seconds.count()},
                              {"forward_seconds", record.forward_seconds.count()},
                              {"backward_seconds", record.backward_seconds.count()},
                              {"update_seconds", record.update_seconds.count()},
                              {"elapsed_seconds", record.elapsed.count()},
                              {"read_bytes", moved_bytes(record.storage, &PathTraffic::read)},
                              {"write_bytes", moved_bytes(record.storage, &PathTraffic::write)}};
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
  append_or_keep(line_of(line));
}

void MetricsFile::write_start(StartRecord const& record) {
  auto const seconds = std::chrono::floor<std::chrono::seconds>(record.time);
  nlohmann::ordered_json line{
      {"start", record.step},
      {"time", fmt::format("{:%Y-%m-%dT%H:%M:%S}Z",
                           fmt::gmtime(slurm::TimePoint::clock::to_time_t(seconds)))},
      {"ranks", record.ranks},
      {"nodes", record.nodes}};
  if (!record.program.empty()) {
    line["program"] = record.program;
    line["working_directory"] = record.working_directory;
  }
  if (record.job) {
    line["job"] = record.job->id;
    line["job_name"] = record.job->name;
    line["restart_count"] = record.job->restart_count;
    if (record.job->array_task) {
      line["array_job"] = record.job->array_job;
      line["array_task"] = *record.job->array_task;
    }
  }
  if (record.parameters > 0) {
    line["parameters"] = record.parameters;
    add_memory(line, record.memory);
  }
  for (PathRecord const& path : record.paths) {
    line["paths"].push_back({{"path", path.directory},
                             {"can_read_gb_per_s", shown_rate(path.read)},
                             {"can_write_gb_per_s", shown_rate(path.write)}});
    if (path.sharing_transfers > 1) {
      line["paths"].back()["sharing_transfers"] = path.sharing_transfers;
    }
  }
  if (record.validations_begin_anew) {
    line["validations_begin_anew"] = true;
  }
  if (!record.from.empty()) {
    line["from"] = record.from;
  }
  for (Change const& change : record.changes) {
    line["changed"][change.key] = {change.then, change.now};
  }
  append(line_of(line));
}

void MetricsFile::write_validation(std::int64_t step, MeanLosses const& losses, Seconds elapsed,
                                   bool counts) {
  nlohmann::ordered_json line{
      {"step", step}, {"valid_loss", losses.all.loss}, {"elapsed_seconds", elapsed.count()}};
  if (!counts) {
    line["counts"] = false;
  }
  if (losses.sources.size() > 1) {
    for (SourceLoss const& source : losses.sources) {
      line["valid_losses"].push_back(
          {{"path", source.path}, {"loss", source.mean.loss}, {"targets", source.mean.targets}});
    }
  }
  append_or_keep(line_of(line));
}

void MetricsFile::write_failure(EndRecord const& record) {
  append(line_of(json_of(record)));
}

void MetricsFile::write_end(EndRecord const& record) {
  auto line = json_of(record);
  add_memory(line, record.memory);
  if (record.best) {
    line["best_step"] = record.best->step;
    line["best_loss"] = record.best->loss;
  }
  line["advice"] = record.advice;
  append(line_of(line));
}

void MetricsFile::add(SaveRecord const& record) {
  waiting_ += line_of({{"step", record.step},
                       {"saved", record.level},
                       {"seconds", record.seconds.count()},
                       {"stood_still_seconds", record.stood_still.count()},
                       {"bytes", record.bytes},
                       {"elapsed_seconds", record.elapsed.count()}});
}

void MetricsFile::add(ForecastRecord const& record) {
  nlohmann::ordered_json forecast{{"given", record.given},
                                  {"step_seconds", record.seconds.count()},
                                  {"forward_seconds", record.forward.count()},
                                  {"backward_seconds", record.backward.count()},
                                  {"update_seconds", record.update.count()}};
  for (ForecastRecord::Path const& path : record.paths) {
    forecast["paths"].push_back({{"path", path.directory},
                                 {"read_bytes", path.read},
                                 {"write_bytes", path.write},
                                 {"read_gb_per_s", shown_rate(path.read_rate)},
                                 {"write_gb_per_s", shown_rate(path.write_rate)}});
  }
  waiting_ += line_of({{"step", record.step}, {"forecast", std::move(forecast)}});
}

void MetricsFile::sync() {
  if (!waiting_.empty()) {
    append_or_keep("");
  }
  if (lacks_lines()) {
    return;
  }
  try {
    opened(path_).sync();
  } catch (IoError const& error) {
    log::warning("{}; training goes on, and the next save tries again", error.what());
  }
}

void MetricsFile::append_or_keep(std::string const& line) {
  bool const first = patient_;
  try {
    append(line);
  } catch (IoError const& error) {
    if (waiting_.size() > most_waiting) {
      throw;
    }
    if (first) {
      log::warning("{}; training goes on, and its records wait in memory until that is possible",
                   error.what());
    }
  }
}

void MetricsFile::append(std::string const& line) {
  waiting_ += line;
  auto const write = [&] {
    OutputFile file{context, path_, O_APPEND};  // again for every line; see OutputFile::close
    if (whole_ && *whole_ < file.size()) {
      file.shorten(*whole_);
    }
    whole_ = file.size();
    file.write(waiting_);
    file.close();
  };
  if (std::exchange(patient_, false)) {
    try_patiently(write);
  } else {
    write();
  }
  patient_ = true;
  whole_.reset();
  waiting_.clear();
}

}  // namespace offstage::train
