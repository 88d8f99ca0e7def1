#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/dtype.hpp"
#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/stopwatch.hpp"
#include "base/units.hpp"
#include "cli/all_ranks.hpp"
#include "cli/command_options.hpp"
#include "cli/commands.hpp"
#include "cli/run_directory.hpp"
#include "cli/tokenizer_check.hpp"
#include "train/report/data_lines.hpp"
#include "train/report/json_line.hpp"
#include "train/run/evaluation.hpp"

namespace offstage::cli {
namespace {

namespace po = boost::program_options;

constexpr char const* evaluate_usage =
    R"(Usage: offstage evaluate --from PATH --data FILE[,FILE...] [--option ...]

Prints the mean loss and the perplexity of a model on data. It is that of a run's validations with
the run's train.sequence, data.cross-documents and numerics.dtype in the options below.
Runs alone or under mpirun or srun: ranks share the parameters, and the loss does not depend on
their number.
  --from PATH           a checkpoint (step-...), a run or directory of checkpoints, whose newest
                        complete one is taken, RUN/best for the one with the best validation,
                        or a Hugging Face directory
  --data FILE,FILE      files of tokens, or patterns of files, as for data.valid, each with a loss
                        of its own, too; a mask beside one says which tokens count
  --sequence N          tokens of a window [1024, or model.max-sequence if that is less]
  --micro-batch N       windows that a rank takes at once [as many as make 4096 tokens]
  --held-out N%         the end of every file alone, as data.valid=N% holds it out
  --windows N           number of windows, the first ones of each FILE; 0: all [0]
  --format F            auto, text, megatron, llmc, nanogpt or u32 [auto]
  --cross-documents X   true, false or whole, as data.cross-documents [true]
  --attention X         window or document, as data.attention [document for whole, else window]
  --separator N         token between documents, as data.separator
  --mask on|off         off: all tokens count [on]
  --dtype fp32|bf16|fp16  type of the model's computation [fp32]
  --device auto|host|cuda  device, as device.kind [auto]
  --threads N           threads of each rank [its share of the cores]
  --json                the result as a line of JSON

  offstage evaluate --from tuned --data chats --cross-documents=whole --sequence=2048)";

GivenOptions parse_evaluate(Arguments const& arguments) {
  po::options_description options;
  auto add = options.add_options();
  auto const text = [] { return po::value<std::string>(); };
  add("from", text()->required());
  add("data", text()->required());
  add("sequence", text());
  add("micro-batch", text());
  for (auto const& [name, value] : {std::pair{"windows", "0"},
                                    {"format", "auto"},
                                    {"cross-documents", "true"},
                                    {"mask", "on"},
                                    {"dtype", "fp32"},
                                    {"device", "auto"},
                                    {"threads", "0"}}) {
    add(name, text()->default_value(value));
  }
  add("separator", text());
  add("json", po::bool_switch());
  add("held-out", text());
  add("attention", text());
  return parse_command_options(arguments, options, "evaluate");
}

/// 0: the option is not given, and evaluate() settles it.
std::int64_t count_or_default(GivenOptions const& given, char const* name, std::int64_t most) {
  return given.contains(name) ? number<std::int64_t>(name, text_of(given, name), 1, most) : 0;
}

data::DatasetOptions data_options(GivenOptions const& given) {
  using data::WindowRule;
  data::DatasetOptions options;
  options.key = "--data";
  options.sequence = count_or_default(given, "sequence", 1'000'000'000);
  options.format = choice<data::Format>("format", text_of(given, "format"),
                                        {data::format_words.begin(), data::format_words.end()});
  options.rule = choice<WindowRule>("cross-documents", text_of(given, "cross-documents"),
                                    {data::rule_words.begin(), data::rule_words.end()});
  options.documents_apart =
      given.contains("attention")
          ? choice<bool>("attention", text_of(given, "attention"),
                         {data::attention_words.begin(), data::attention_words.end()})
          : options.rule == WindowRule::whole;
  if (given.contains("attention") && options.rule == WindowRule::apart) {
    throw UsageError{
        fmt::format("--attention={} has no effect with --cross-documents=false; leave it out",
                    text_of(given, "attention"))};
  }
  options.uses_masks = choice<bool>("mask", text_of(given, "mask"), {{"off", false}, {"on", true}});
  if (given.contains("separator")) {
    options.separator =
        number<std::int32_t>("separator", text_of(given, "separator"), 0, 1'000'000'000);
  }
  return options;
}

data::HeldOut held_out_of(std::string const& text) try {
  if (auto const part = data::parse_held_out(text)) {
    return {*part, true};
  }
  throw UsageError{fmt::format("'{}' is no part of a file; write it as in 1%", text)};
} catch (UsageError const& error) {
  throw UsageError{fmt::format("--held-out: {}", error.what())};
}

train::EvaluationTask task_of(GivenOptions const& given) {
  using config::DeviceKind;
  train::EvaluationTask task;
  task.from = given_checkpoints(text_of(given, "from"));
  try {
    task.data = data::parse_sources_in_turn(text_of(given, "data"));
  } catch (UsageError const& error) {
    throw UsageError{fmt::format("--data: {}", error.what())};
  }
  task.options = data_options(given);
  if (given.contains("held-out")) {
    task.options.held_out = held_out_of(text_of(given, "held-out"));
  }
  task.micro_batch = count_or_default(given, "micro-batch", 1'000'000);
  task.most_windows =
      number<std::int64_t>("windows", text_of(given, "windows"), 0, 1'000'000'000'000);
  task.dtype = choice<DType>("dtype", text_of(given, "dtype"),
                             {{"fp32", DType::fp32}, {"bf16", DType::bf16}, {"fp16", DType::fp16}});
  task.device.kind = choice<DeviceKind>(
      "device", text_of(given, "device"),
      {{"auto", DeviceKind::automatic}, {"host", DeviceKind::host}, {"cuda", DeviceKind::cuda}});
  task.threads =
      static_cast<int>(number<std::int64_t>("threads", text_of(given, "threads"), 0, 1'000'000));
  return task;
}

void print(train::Evaluation const& done, Seconds elapsed) {
  for (std::string const& line : train::describe_validation_files(done.files, done.windows)) {
    log::info("{}", line.substr(line.find(' ') + 1));  // without the name of a key
  }
  if (auto const& sources = done.mean.sources; sources.size() > 1) {
    for (train::SourceLoss const& source : sources) {
      log::info("{}: loss {} over {} targets", printable(source.path),
                train::loss_text(source.mean, 7), source.mean.targets);
    }
  }
  log::info(
      "loss {:.7f} nats per token, perplexity {:.7g}, over {} targets in {} windows of {}, {} at a "
      "time, {}",
      done.mean.all.loss, std::exp(done.mean.all.loss), done.mean.all.targets, done.windows,
      done.sequence, done.micro_batch, format_duration(elapsed));
}

nlohmann::ordered_json record_of(train::Evaluation const& done, train::EvaluationTask const& task,
                                 Seconds elapsed) {
  auto const loss_of = [](train::MeanLoss const& mean) {
    return nlohmann::ordered_json{
        {"loss", mean.loss}, {"perplexity", std::exp(mean.loss)}, {"targets", mean.targets}};
  };
  auto record = loss_of(done.mean.all);
  record["windows"] = done.windows;
  record["sequence"] = done.sequence;
  record["from"] = done.from;
  record["dtype"] = name_of(task.dtype);
  record["cross_documents"] = std::ranges::find(data::rule_words, task.options.rule,
                                                &std::pair<char const*, data::WindowRule>::second)
                                  ->first;
  record["seconds"] = elapsed.count();
  record["sources"] = nlohmann::ordered_json::array();
  for (train::SourceLoss const& source : done.mean.sources) {
    nlohmann::ordered_json each{{"path", source.path}};
    each.update(loss_of(source.mean));
    record["sources"].push_back(std::move(each));
  }
  return record;
}

}  // namespace

ExitCode evaluate_command(Arguments const& arguments) {
  if (arguments.empty() || asks_for_help(arguments)) {
    log::write_lines(evaluate_usage);
    return arguments.empty() ? ExitCode::usage : ExitCode::done;
  }
  return on_all_ranks([&](mpi::Communicator const& comm) {
    Stopwatch const watch;
    train::EvaluationTask task;
    bool as_json = false;
    mpi::agree(comm, [&] {
      auto const given = parse_evaluate(arguments);
      task = task_of(given);
      as_json = given["json"].as<bool>();
      if (comm.rank() == 0) {
        warn_of_other_tokenizers({{"--data", task.data}}, "--from", task.from);
      }
    });
    auto const done = train::evaluate(task, comm);
    if (comm.rank() == 0) {
      for (std::string const& doubt : train::doubts_about(done.files, done.short_files, "--data")) {
        log::warning("{}", doubt);
      }
      if (as_json) {
        log::write_lines(train::json_line(record_of(done, task, watch.elapsed())));
      } else {
        print(done, watch.elapsed());
      }
    }
  });
}

}  // namespace offstage::cli
