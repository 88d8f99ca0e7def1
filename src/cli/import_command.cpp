#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <vector>

#include "base/dtype.hpp"
#include "base/log.hpp"
#include "base/stopwatch.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/nearest.hpp"
#include "convert/convert.hpp"
#include "platform/mpi/communicator.hpp"
#include "platform/mpi/session.hpp"

namespace offstage::cli {
namespace {

constexpr char const* import_usage =
    "Usage: offstage import --from DIR --to DIR\n"
    "\n"
    "Makes the checkpoint step-000000000 in --to of the Hugging Face model in --from: config.json\n"
    "(llama, qwen2 or gpt2) with model.safetensors, or with its shards and their index; numbers "
    "of\n"
    "32 or 16 bits. offstage train --checkpoint.dir=DIR goes on from it and knows its model.* "
    "keys.\n"
    "Works alone and under mpirun or srun, in some 100 MB of memory per rank.";

constexpr char const* export_usage =
    "Usage: offstage export --from PATH --to DIR [--dtype=fp32|bf16|fp16] [--shard-size=5GB]\n"
    "\n"
    "Makes a Hugging Face model in --to: config.json and safetensors files with at most "
    "--shard-size\n"
    "of tensors in each. --from: a checkpoint (step-...); a directory of checkpoints or a run\n"
    "directory, whose newest complete checkpoint is taken; or another Hugging Face model. --dtype\n"
    "fp32 (the default) keeps every bit, the others round to nearest even. Works alone and under\n"
    "mpirun or srun, in some 100 MB of memory per rank; the files are the same.";

using Values = std::map<std::string, std::string>;

/// "--key value" and "--key=value". Errors: UsageError.
Values parse(Arguments const& arguments, std::vector<std::string> const& known,
             std::string_view command) {
  Values values;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string const& argument = arguments[i];
    std::size_t const equals = argument.find('=');
    std::string const key = argument.substr(0, equals);
    if (std::ranges::find(known, key) == known.end()) {
      throw UsageError{fmt::format("unknown option '{}'; the nearest is {}; see offstage {} --help",
                                   argument, nearest(key, known), command)};
    }
    bool const apart = equals == std::string::npos;
    if (apart && i + 1 == arguments.size()) {
      throw UsageError{fmt::format("{} needs a value; see offstage {} --help", key, command)};
    }
    std::string const value = apart ? arguments[++i] : argument.substr(equals + 1);
    if (value.empty() || (apart && value.starts_with("--"))) {
      throw UsageError{
          fmt::format("{} needs a value, not '{}'; see offstage {} --help", key, value, command)};
    }
    if (!values.emplace(key, value).second) {
      throw UsageError{fmt::format("{} is given twice", key)};
    }
  }
  for (char const* key : {"--from", "--to"}) {
    if (!values.contains(key)) {
      throw UsageError{fmt::format("{} is missing; see offstage {} --help", key, command)};
    }
  }
  return values;
}

DType dtype_of(Values const& values) {
  auto const found = values.find("--dtype");
  if (found == values.end()) {
    return DType::fp32;
  }
  for (DType const dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    if (found->second == name_of(dtype)) {
      return dtype;
    }
  }
  throw UsageError{fmt::format("--dtype={} must be fp32, bf16 or fp16", found->second)};
}

Bytes shard_bytes_of(Values const& values) {
  auto const found = values.find("--shard-size");
  try {
    Bytes const bytes = parse_bytes(found == values.end() ? "5GB" : found->second);
    if (bytes < 1) {
      throw UsageError{"it must be at least one byte"};
    }
    return bytes;
  } catch (UsageError const& error) {
    throw UsageError{fmt::format("--shard-size={}: {}", found->second, error.what())};
  }
}

void report_done(char const* what, convert::Converted const& done, Seconds elapsed) {
  log::info("{} {}: {} parameters, {} in {}", what, done.path, done.parameters,
            format_bytes(done.bytes), format_duration(elapsed));
}

/// Runs `work` on all ranks; what they agree on is printed once, by rank 0.
template <class Work>
ExitCode on_all_ranks(Work&& work) {
  mpi::Session const session;
  auto const comm = mpi::Communicator::world();
  try {
    work(comm);
    return ExitCode::done;
  } catch (mpi::AgreedError const& error) {
    if (comm.rank() == 0) {
      int const rank = error.failed_rank();
      log::error("{}{}", rank == 0 ? std::string{} : fmt::format("rank {}: ", rank), error.what());
    }
    return error.code();
  } catch (...) {
    if (comm.size() == 1) {
      return report(std::current_exception());
    }
    // This rank alone knows; the others would wait for it for ever.
    auto const code = report(std::current_exception(), fmt::format("rank {}: ", comm.rank()));
    mpi::abort_job(static_cast<int>(code));
  }
}

}  // namespace

ExitCode import_command(Arguments const& arguments) {
  if (asks_for_help(arguments)) {
    log::write_info(import_usage);
    return ExitCode::done;
  }
  return on_all_ranks([&](mpi::Communicator const& comm) {
    Stopwatch const watch;
    Values values;
    mpi::agree(comm, [&] { values = parse(arguments, {"--from", "--to"}, "import"); });
    auto const done = convert::import_model(values.at("--from"), values.at("--to"), comm);
    if (comm.rank() == 0) {
      report_done("imported", done, watch.elapsed());
    }
  });
}

ExitCode export_command(Arguments const& arguments) {
  if (asks_for_help(arguments)) {
    log::write_info(export_usage);
    return ExitCode::done;
  }
  return on_all_ranks([&](mpi::Communicator const& comm) {
    Stopwatch const watch;
    Values values;
    auto dtype = DType::fp32;
    Bytes shard_bytes = 0;
    mpi::agree(comm, [&] {
      values = parse(arguments, {"--from", "--to", "--dtype", "--shard-size"}, "export");
      dtype = dtype_of(values);
      shard_bytes = shard_bytes_of(values);
    });
    auto const done =
        convert::export_model(values.at("--from"), values.at("--to"), dtype, shard_bytes, comm);
    if (comm.rank() == 0) {
      report_done("exported", done, watch.elapsed());
    }
  });
}

}  // namespace offstage::cli
