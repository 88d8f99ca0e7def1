#include "convert/convert.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <map>
#include <optional>
#include <ranges>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/path.hpp"
#include "base/printable.hpp"
#include "base/regular_file.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/listing.hpp"
#include "checkpoint/master.hpp"
#include "checkpoint/store.hpp"
#include "convert/averaged_parameters.hpp"
#include "convert/checkpoint_parameters.hpp"
#include "convert/parameter_tiers.hpp"
#include "huggingface/file.hpp"
#include "huggingface/model_directory.hpp"
#include "platform/aio/file.hpp"

namespace offstage::convert {
namespace {

using checkpoint::Completeness;

// 48 MiB of state.
constexpr std::int64_t subgroup_elements = 4 * MiB;

/// A rank's part of a model.
struct Part {
  Part(state::ModelShape const& shape, mpi::Communicator const& comm)
      : map{state::layers_of(shape), comm.size()},
        subgroups{state::subgroups_of(map, comm.rank(), subgroup_elements)} {}

  state::ShardMap map;
  std::vector<state::Subgroup> subgroups;
};

/// Errors: IoError if `to` is a file, or lies in one.
void require_no_file(std::string const& to) {
  std::error_code error;
  auto const status = std::filesystem::status(to, error);
  if (error == std::errc::not_a_directory) {
    throw IoError{fmt::format("--to={} lies in a file; name another directory", to)};
  }
  if (std::filesystem::exists(status) && !std::filesystem::is_directory(status)) {
    throw IoError{fmt::format("--to={} is a file; name a directory", to)};
  }
}

/// Of a place that others take a checkpoint or the newest of them from.
void require_no_checkpoints(std::string const& directory) {
  if (checkpoint::has_master(directory)) {
    throw UsageError{fmt::format("--to={} is a checkpoint; name another directory", directory)};
  }
  for (checkpoint::StepDirectory const& step : checkpoint::step_directories(directory)) {
    if (checkpoint::has_master(step.path)) {
      throw UsageError{fmt::format("--to={} holds checkpoints already ({}); name another directory",
                                   directory, checkpoint::step_name(step.step))};
    }
  }
}

checkpoint::Meta meta_of(state::ModelShape const& model, std::string const& commit, int ranks) {
  checkpoint::Meta meta;
  meta.model = model;
  for (state::ModelKey const& key : state::keys_of(model)) {
    meta.configuration += fmt::format("{}={}\n", key.key, key.value);
  }
  meta.program = program_text(commit);
  meta.threads = 1;
  meta.ranks = ranks;
  return meta;
}

/// Checks that nobody takes checkpoints from `to`, or from a run that lies there.
/// Errors: UsageError naming --to; IoError if it is no directory.
void require_free_place(std::string const& to) {
  require_no_file(to);
  require_no_checkpoints(to);
  require_no_checkpoints(to + "/checkpoints");
}

/// Errors: IoError naming --to.
void make_directory(aio::MadeDirectories& made, std::string const& to) try {
  made.make(to);
} catch (IoError const& error) {
  throw IoError{fmt::format("--to={}: {}", to, error.what())};
}

/// This rank's part, to the files that another rank has created.
void write_part(state::ParameterReader& reader, Part const& part,
                huggingface::ModelWriter& writer) {
  if (part.subgroups.empty()) {
    return;
  }
  memory::HugeBuffer const buffer{largest_subgroup(part.subgroups) *
                                  static_cast<Bytes>(sizeof(float))};
  for (state::Subgroup const& subgroup : part.subgroups) {
    auto const parameters = buffer.as<float>().first(static_cast<std::size_t>(subgroup.size));
    read_pieces(reader, subgroup, parameters);
    for (state::Piece const& piece : subgroup.pieces) {
      writer.write(
          piece.layer, piece.chunks,
          parameters.subspan(static_cast<std::size_t>(piece.offset),
                             static_cast<std::size_t>(piece.chunks.count * chunk_elements)));
    }
  }
  writer.sync();
}

/// The Hugging Face model with a tokenizer that a model or a checkpoint was begun from, or one that
/// is not there any more; "DIR" if it is not known.
std::string origin_of(std::string const& source) {
  auto const from =
      huggingface::is_model_directory(source)
          ? source
          : checkpoint::recorded(checkpoint::read_master(source).meta, "train.init-from");
  bool const may_serve =
      !is_directory(from) || huggingface::first_name(from, huggingface::is_companion);
  return !from.empty() && may_serve ? from : "DIR";
}

/// The directory of checkpoints that a path of a run, or of such a directory, means; empty: it is
/// neither. Errors: IoError.
std::string checkpoints_in(std::string const& path) {
  for (std::string const& directory : {path, path + "/checkpoints"}) {
    if (is_directory(directory) && checkpoint::holds_any(directory)) {
      return directory;
    }
  }
  return {};
}

/// The step in the name of a checkpoint that list() has found.
std::int64_t step_of(checkpoint::Listed const& entry) {
  return checkpoint::step_of(std::filesystem::path{entry.path}.filename().string()).value_or(0);
}

/// The checkpoint of the best validation that `newest` knows of; nullopt: it is gone, or there was
/// no validation. Errors: those of checkpoint::list; IoError if it cannot be read at present,
/// DataError if it is damaged.
std::optional<checkpoint::Listed> best_in(std::string const& directory,
                                          checkpoint::Listed const& newest) {
  auto const step = checkpoint::recorded(newest.meta, "best-validation.step");
  auto const number = number_in<std::int64_t>(step);
  if (!number) {
    return std::nullopt;
  }
  std::string refused, damaged;  // it may be there in another level
  for (checkpoint::Listed& entry : checkpoint::list_step(directory, *number)) {
    if (entry.state == Completeness::complete) {
      return std::move(entry);
    }
    (entry.state == Completeness::refused ? refused : damaged) = entry.problem;
  }
  if (!refused.empty()) {
    throw IoError{refused};
  }
  if (!damaged.empty()) {
    throw DataError{
        fmt::format("the best validation was that of step {}, whose checkpoint is not "
                    "complete: {}",
                    step, damaged)};
  }
  return std::nullopt;
}

bool knows_best(checkpoint::Listed const& entry) {
  return !checkpoint::recorded(entry.meta, "best-validation.step").empty();
}

/// The newest complete checkpoint that knows of a validation, as a later stage may have had none;
/// `newest` if none does.
checkpoint::Listed newest_that_validated(std::string const& directory, checkpoint::Listed newest) {
  if (knows_best(newest)) {
    return newest;
  }
  auto entries = checkpoint::list(directory, checkpoint::Warn::no);
  for (checkpoint::Listed& entry : entries | std::views::reverse) {
    if (entry.state == Completeness::complete && knows_best(entry)) {
      return std::move(entry);
    }
  }
  return newest;
}

/// The checkpoint of a run's best validation. Errors: DataError if there is none.
std::string resolve_best(std::string const& run, std::string const& key, checkpoint::Warn warn) {
  auto const named = fmt::format("{}{}/best", key.empty() ? "" : key + "=", run);
  if (!is_directory(run)) {
    throw DataError{fmt::format("{}: there is no directory {}", named, run)};
  }
  auto const directory = checkpoints_in(run);
  auto newest = directory.empty() ? std::nullopt : checkpoint::newest_complete(directory, warn);
  if (!newest) {
    throw DataError{fmt::format("{}: {} has no complete checkpoint", named, run)};
  }
  newest = newest_that_validated(directory, *std::move(newest));
  if (auto const best = best_in(directory, *newest)) {
    return best->path;
  }
  auto const step = checkpoint::recorded(newest->meta, "best-validation.step");
  throw DataError{fmt::format(
      "{}: {}", named,
      step.empty() ? fmt::format("{} knows of no validation", newest->path)
      : step == "0"
          ? fmt::format("the best validation was that of step 0, before the first one: "
                        "the model that the run began with is better "
                        "than all of its checkpoints")
          : fmt::format("the best validation was that of step {}, whose checkpoint is not "
                        "kept; checkpoint.keep-best=on would have kept it",
                        step))};
}

void warn_of_better(std::string const& directory, checkpoint::Listed const& newest,
                    std::string const& path, std::string const& key) try {
  auto const best = best_in(directory, newest);
  if (best && best->meta.step != newest.meta.step) {
    log::warning(
        "{}={}: takes the newest checkpoint, of step {}; the best validation was that of step {}: "
        "{}={}/best takes its checkpoint",
        key, path, newest.meta.step, best->meta.step, key, path);
  }
} catch (IoError const& error) {
  log::warning("{}; whether another checkpoint had a better validation is not known", error.what());
} catch (DataError const& error) {
  log::warning("{}={}: takes the newest checkpoint; {}", key, path, error.what());
}

/// The newest complete checkpoint. A warning says if an older one had a better validation.
std::string resolve_newest(std::string const& directory, std::string const& path,
                           std::string const& key, checkpoint::Warn warn) {
  auto const newest = checkpoint::newest_complete(directory, warn);
  if (!newest) {
    throw DataError{fmt::format("{}={}: {} has no complete checkpoint; see offstage checkpoint ls",
                                key, path, directory)};
  }
  if (warn == checkpoint::Warn::yes) {
    warn_of_better(directory, *newest, path, key);
  }
  return newest->path;
}

/// The paths of the newest complete checkpoints, oldest first. A warning names each that is passed
/// over.
/// Errors: as resolve_parameters; UsageError if --from is one model; DataError if there are fewer;
/// IoError if one cannot be read at present, as the mean would be another without it.
std::vector<std::string> newest_steps(std::string const& from, std::int64_t count) {
  static_cast<void>(resolve_parameters(from, "--from", checkpoint::Warn::no));
  bool const is_one = huggingface::is_model_directory(from) || checkpoint::has_master(from);
  auto const directory = is_one ? "" : checkpoints_in(from);
  if (directory.empty()) {
    throw UsageError{fmt::format(
        "--average={} is for a run or a directory of checkpoints, and --from={} is one model",
        count, from)};
  }
  auto const all = checkpoint::list(directory);
  std::map<std::int64_t, std::string> by_step;
  for (checkpoint::Listed const& entry : all) {
    if (entry.state == Completeness::complete) {
      by_step.emplace(entry.meta.step, entry.path);
    }
  }
  while (std::ssize(by_step) > count) {
    by_step.erase(by_step.begin());
  }
  bool const suffice = std::ssize(by_step) == count;
  for (checkpoint::Listed const& entry : all) {
    bool const matters = !suffice || step_of(entry) > by_step.begin()->first;
    if (!matters || by_step.contains(step_of(entry)) || entry.state == Completeness::unfinished ||
        entry.state == Completeness::partial || was_removed(entry)) {
      continue;
    }
    if (entry.state == Completeness::refused) {
      throw IoError{entry.problem};
    }
    if (suffice && entry.level == 2) {
      log::warning("{}: the mean is without this checkpoint", entry.problem);
    }
  }
  if (!suffice) {
    throw DataError{
        fmt::format("--average={}: {} has {} complete checkpoint{}; a run keeps more with "
                    "checkpoint.keep or checkpoint.keep-every, see offstage checkpoint ls",
                    count, directory, by_step.size(), by_step.size() == 1 ? "" : "s")};
  }
  std::vector<std::string> paths;
  for (auto const& [step, path] : by_step) {
    paths.push_back(path);
  }
  return paths;
}

/// Rank 0's answer for all. Collective. Errors: mpi::AgreedError.
std::vector<std::string> newest_steps(std::string const& from, std::int64_t count,
                                      mpi::Communicator const& comm) {
  std::vector<std::string> paths;
  mpi::agree(comm, [&] {
    if (comm.rank() == 0) {
      paths = newest_steps(from, count);
    }
  });
  paths.resize(static_cast<std::size_t>(count));
  for (std::string& path : paths) {
    path = comm.broadcast(std::move(path), 0);
  }
  return paths;
}

/// The paths of a model or, in one directory, of those whose mean it is.
std::string describe_sources(std::vector<std::string> const& paths) {
  std::filesystem::path const last{paths.back()};
  if (paths.size() == 1) {
    return last;
  }
  std::vector<std::string> names;
  for (std::string const& path : paths) {
    names.push_back(std::filesystem::path{path}.filename());
  }
  return fmt::format("the mean of {} checkpoints in {}, {}", paths.size(),
                     last.parent_path().string(), fmt::join(names, ", "));
}

/// The model of one path, or the mean of several.
std::unique_ptr<state::ParameterReader> open_mean(std::vector<std::string> const& paths,
                                                  std::string const& from) {
  std::vector<std::unique_ptr<state::ParameterReader>> models;
  for (std::string const& path : paths) {
    models.push_back(open_parameters(path, "--from"));
    state::ModelShape const& first = models.front()->shape();
    state::ModelShape const& shape = models.back()->shape();
    if (!same_parameters(first, shape)) {
      throw DataError{
          fmt::format("--from={}: the checkpoints {} and {} are of different models ({})", from,
                      paths.front(), path, differences(first, "the first", shape, "the second"))};
    }
  }
  if (models.size() == 1) {
    return std::move(models.front());
  }
  return std::make_unique<AveragedParameters>(std::move(models));
}

/// A model in a directory that is none: of the Trainer's checkpoints the last one, or a snapshot in
/// the cache of the Hugging Face hub. Empty: there is none.
std::string model_within(std::string const& path) {
  std::string found;
  for (std::string const& within : {path, path + "/snapshots"}) {
    std::error_code ignored;
    for (auto const& entry : std::filesystem::directory_iterator{within, ignored}) {
      auto const name = entry.path().string();
      bool const is_later = std::pair{name.size(), name} > std::pair{found.size(), found};
      if (is_later && std::filesystem::exists(entry.path() / "config.json", ignored)) {
        found = name;
      }
    }
  }
  return found;
}

}  // namespace

std::string run_of_best(std::string const& path) {
  auto const whole = without_slash(path);
  if (whole.filename() != "best" || is_there(whole.string())) {
    return {};
  }
  return whole.has_parent_path() ? whole.parent_path().string() : ".";
}

std::string resolve_parameters(std::string const& path, std::string const& key,
                               checkpoint::Warn warn) {
  if (huggingface::is_model_directory(path) || checkpoint::has_master(path)) {
    return path;
  }
  if (auto const run = run_of_best(path); !run.empty()) {
    return resolve_best(run, key, warn);
  }
  if (auto const directory = checkpoints_in(path); !directory.empty()) {
    return resolve_newest(directory, path, key, warn);
  }
  if (auto const model = model_within(path); !model.empty()) {
    throw DataError{fmt::format("{}={}: holds no model itself, but {} is one; name that", key, path,
                                printable(model))};
  }
  throw DataError{fmt::format(
      "{}={}: {}; name a Hugging Face model (a directory with config.json, which hf download "
      "ORG/NAME --local-dir DIR brings from the hub), a checkpoint (step-...), or a directory of "
      "checkpoints",
      key, path,
      is_directory(path) ? "holds no model"
      : is_file(path)    ? "it is a file"
                         : "there is no such directory")};
}

std::string resolve_parameters(std::string const& path, std::string const& key,
                               mpi::Communicator const& comm) {
  std::string resolved;
  mpi::agree(comm, [&] {
    if (comm.rank() == 0) {
      resolved = resolve_parameters(path, key);
    }
  });
  return comm.broadcast(std::move(resolved), 0);
}

std::string resolve_checkpoint(std::string const& path, checkpoint::Warn warn) {
  bool const is_one = huggingface::is_model_directory(path) || checkpoint::has_master(path);
  bool const holds_some = !run_of_best(path).empty() || !checkpoints_in(path).empty();
  return !is_one && holds_some ? resolve_parameters(path, "checkpoint.resume", warn) : path;
}

std::unique_ptr<state::ParameterReader> open_parameters(std::string const& path,
                                                        std::string const& key,
                                                        checkpoint::Warn warn) {
  std::string const resolved = resolve_parameters(path, key, warn);
  if (huggingface::is_model_directory(resolved)) {
    return std::make_unique<huggingface::ModelDirectory>(resolved);
  }
  return std::make_unique<CheckpointParameters>(resolved);
}

Converted import_model(std::string const& from, std::string const& to,
                       mpi::Communicator const& comm, std::string const& commit) {
  std::unique_ptr<huggingface::ModelDirectory> model;
  mpi::agree(comm, [&] {
    if (comm.rank() == 0) {
      // Checkpoints of a run in checkpoints/ would be hidden by one that lies above them.
      require_free_place(to);
    }
    if (!huggingface::is_model_directory(from)) {
      throw DataError{fmt::format("--from={}: is no Hugging Face model; {}", from,
                                  is_file(from) ? "it is a file: name the directory that it lies in"
                                                : "it has no config.json")};
    }
    model = std::make_unique<huggingface::ModelDirectory>(from);
  });
  Part const part{model->shape(), comm};
  std::unique_ptr<ParameterTiers> tiers;
  mpi::agree(comm, [&] { tiers = std::make_unique<ParameterTiers>(*model, part.subgroups); });
  aio::MadeDirectories made;
  mpi::agree(comm, [&] {
    if (comm.rank() == 0) {
      make_directory(made, to);
    }
  });
  checkpoint::Store store{to, {}, comm, "--to"};
  auto const stats =
      store.save(meta_of(model->shape(), commit, comm.size()), part.map, part.subgroups, *tiers);
  made.keep();
  return {stats.path, from, state::count_parameters(part.map.layers()), comm.sum(stats.bytes),
          model->left_out()};
}

Converted export_model(ExportSource const& wanted, std::string const& to, DType dtype,
                       Bytes shard_bytes, Like const& like, mpi::Communicator const& comm) {
  auto const sources = wanted.average > 1
                           ? newest_steps(wanted.from, wanted.average, comm)
                           : std::vector{resolve_parameters(wanted.from, "--from", comm)};
  std::string const& source = sources.back();
  std::unique_ptr<state::ParameterReader> reader;
  mpi::agree(comm, [&] { reader = open_mean(sources, wanted.from); });
  Part const part{reader->shape(), comm};
  huggingface::ModelWriter writer{to, reader->shape(), dtype, shard_bytes};
  auto const on_rank_0 = [&](auto&& work) {
    mpi::agree(comm, [&] {
      if (comm.rank() == 0) {
        work();
      }
    });
  };
  std::string advice;
  on_rank_0([&] {
    // A model among checkpoints would be taken for the newest of them from then on.
    require_free_place(to);
    if (!like.directory.empty()) {
      writer.set_companions(
          huggingface::read_companions(like.directory, "--like", reader->shape().vocab, like.eos));
    } else if (auto const origin = origin_of(source);
               origin != "DIR" || reader->shape().vocab != huggingface::vocab_of_bytes) {
      advice = fmt::format(
          "without --like it has no tokenizer, and config.json no bos and eos; --like={} brings "
          "them",
          printable_name(origin));
    }
    writer.create();
  });
  try {
    mpi::agree(comm, [&] { write_part(*reader, part, writer); });
    on_rank_0([&] { writer.commit(); });
  } catch (mpi::AgreedError const&) {
    if (comm.rank() == 0) {
      writer.abandon();
    }
    throw;
  }
  return {to, describe_sources(sources), state::count_parameters(part.map.layers()), writer.bytes(),
          advice};
}

}  // namespace offstage::convert
