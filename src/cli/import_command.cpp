#include <fmt/format.h>

#include <boost/program_options.hpp>
#include <string>

#include "base/dtype.hpp"
#include "base/log.hpp"
#include "base/stopwatch.hpp"
#include "base/units.hpp"
#include "cli/all_ranks.hpp"
#include "cli/command_options.hpp"
#include "cli/commands.hpp"
#include "cli/commit.hpp"
#include "cli/run_directory.hpp"
#include "convert/convert.hpp"

namespace offstage::cli {
namespace {

namespace po = boost::program_options;

constexpr char const* import_usage =
    R"(Usage: offstage import --from DIR --to DIR

Makes the checkpoint step-000000000 in --to from the Hugging Face model in --from.
The model is config.json (llama, qwen2, qwen3, mistral, phi3, olmo2 or gpt2) with model.safetensors
or pytorch_model.bin, or with shards and their index. Its numbers have 32 or 16 bits.
offstage train --checkpoint.dir=DIR goes on from that checkpoint and knows its model.* keys.
Works alone and under mpirun or srun, in some 100 MB of memory per rank.)";

constexpr char const* export_usage =
    R"(Usage: offstage export --from PATH --to DIR [--dtype=fp32|bf16|fp16] [--shard-size=5GB]
                       [--like=DIR [--eos=TOKEN]] [--average=N]

Makes a Hugging Face model in --to: config.json and safetensors files.
  --from        a checkpoint (step-...), a run or directory of checkpoints, whose newest complete
                one is taken, RUN/best for the one with the best validation, or another
                Hugging Face model
  --dtype       fp32 keeps every bit, the others round to nearest even [fp32]
  --shard-size  most bytes of tensors in a file, 1MiB or more [5GB]
  --like        the model that this one was tuned from, or a directory with its tokenizer alone.
                Tokenizer, chat template and generation_config.json are copied, and config.json
                names the tokens for the beginning and the end, so that a tuned model stops by
                itself
  --eos         text of the token that ends an answer, if it is another than in --like
  --average     the mean of the parameters of so many newest complete checkpoints of a run or a
                directory of checkpoints, in place of the newest [1]; some 600 kB of memory for
                each

Works alone and under mpirun or srun, in some 100 MB of memory per rank, with the same files.

  offstage export --from run --to tuned --like=models/Qwen2.5-0.5B --eos='<|im_end|>')";

constexpr Bytes least_shard_bytes = MiB;
constexpr std::int64_t most_averaged = 100;

/// The options --from, --to and others.
po::options_description from_and_to() {
  po::options_description options;
  options.add_options()("from", po::value<std::string>()->required());
  options.add_options()("to", po::value<std::string>()->required());
  return options;
}

Bytes shard_bytes_of(std::string const& text) {
  try {
    Bytes const bytes = parse_bytes(text);
    if (bytes < least_shard_bytes) {
      throw UsageError{
          "it must be at least 1MiB, else nearly every tensor would have a file of its own; write "
          "for example 5GB"};
    }
    return bytes;
  } catch (UsageError const& error) {
    throw UsageError{fmt::format("--shard-size={}: {}", text, error.what())};
  }
}

convert::Like like_of(GivenOptions const& given) {
  convert::Like like;
  if (given.contains("like")) {
    like.directory = text_of(given, "like");
  }
  if (given.contains("eos")) {
    like.eos = text_of(given, "eos");
  }
  if (like.eos && like.directory.empty()) {
    throw UsageError{"--eos names a token of --like's tokenizer; give --like=DIR with it"};
  }
  return like;
}

void report_done(char const* what, convert::Converted const& done, Seconds elapsed) {
  log::info("{} {} from {}: {} parameters, {} in {}", what, done.path, done.source, done.parameters,
            format_bytes(done.bytes), format_duration(elapsed));
  if (!done.advice.empty()) {
    log::info("{}", done.advice);
  }
}

}  // namespace

ExitCode import_command(Arguments const& arguments) {
  if (asks_for_help(arguments)) {
    log::write_lines(import_usage);
    return ExitCode::done;
  }
  return on_all_ranks([&](mpi::Communicator const& comm) {
    Stopwatch const watch;
    GivenOptions given;
    mpi::agree(comm, [&] { given = parse_command_options(arguments, from_and_to(), "import"); });
    auto const done =
        convert::import_model(text_of(given, "from"), text_of(given, "to"), comm, commit());
    if (comm.rank() == 0) {
      report_done("imported", done, watch.elapsed());
    }
  });
}

ExitCode export_command(Arguments const& arguments) {
  if (asks_for_help(arguments)) {
    log::write_lines(export_usage);
    return ExitCode::done;
  }
  return on_all_ranks([&](mpi::Communicator const& comm) {
    Stopwatch const watch;
    GivenOptions given;
    auto dtype = DType::fp32;
    Bytes shard_bytes = 0;
    convert::Like like;
    convert::ExportSource wanted;
    mpi::agree(comm, [&] {
      auto options = from_and_to();
      options.add_options()("dtype", po::value<std::string>()->default_value("fp32"));
      options.add_options()("shard-size", po::value<std::string>()->default_value("5GB"));
      options.add_options()("like", po::value<std::string>());
      options.add_options()("eos", po::value<std::string>());
      options.add_options()("average", po::value<std::string>()->default_value("1"));
      given = parse_command_options(arguments, options, "export");
      dtype = choice<DType>("dtype", text_of(given, "dtype"),
                            {{"fp32", DType::fp32}, {"bf16", DType::bf16}, {"fp16", DType::fp16}});
      shard_bytes = shard_bytes_of(text_of(given, "shard-size"));
      like = like_of(given);
      wanted.from = given_checkpoints(text_of(given, "from"));
      wanted.average = number<std::int64_t>("average", text_of(given, "average"), 1, most_averaged);
    });
    auto const done =
        convert::export_model(wanted, text_of(given, "to"), dtype, shard_bytes, like, comm);
    if (comm.rank() == 0) {
      report_done("exported", done, watch.elapsed());
    }
  });
}

}  // namespace offstage::cli
