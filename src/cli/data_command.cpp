#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <boost/program_options.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "cli/command_options.hpp"
#include "cli/commands.hpp"
#include "cli/pack_command.hpp"
#include "data/dataset.hpp"
#include "data/globs.hpp"
#include "data/loss_mask.hpp"
#include "data/mixture.hpp"
#include "data/summary.hpp"
#include "data/token_file.hpp"
#include "data/tokenizer_note.hpp"
#include "data/window_packing.hpp"

namespace offstage::cli {
namespace {

namespace po = boost::program_options;

constexpr char const* data_usage =
    R"(Usage: offstage data inspect PATH[:WEIGHT][,PATH...] [--format=F] [--vocab=N] [--sequence=T]
                             [--separator=N]
       offstage data pack --from TEXT... --to PREFIX --tokenizer=NAME [--option ...]
                             makes such a file from text; see offstage data pack --help

inspect reads files of tokens, named as in data.train, and says what is in them. A mask beside a
file (PREFIX.mask) is verified. Of several files it says their shares of a run's samples.
  --format     auto, text (every byte is a token), megatron (X.bin with X.idx), llmc, nanogpt,
               u32 [auto]
  --vocab      model.vocab: fails on the first token beyond it [16777216]
  --sequence   train.sequence: how many windows of so many tokens there are [1024]
  --separator  token that ends a document, for formats that do not store where they end

  offstage data inspect books --vocab=32000 --sequence=2048
  offstage data inspect books.bin:0.7,wiki.bin:0.3)";

/// Limit of a vocabulary, 2^24. Counts of all its tokens take 128 MiB.
constexpr std::int64_t largest_vocab = 16'777'216;

/// Name of the option that takes arguments without a name.
constexpr char const* position_name = "path";

std::int64_t whole(GivenOptions const& given, std::string const& option, std::int64_t least,
                   std::int64_t most) {
  return number(option, given[option].as<std::string>(), least, most);
}

std::string describe(std::optional<std::vector<std::int64_t>> const& lengths) {
  if (!lengths) {
    return "not told by the format; --separator=N if a token ends them";
  }
  auto const at = [&](std::size_t i) { return (*lengths)[i]; };
  return fmt::format("{}; tokens: shortest {}, median {}, longest {}", lengths->size(), at(0),
                     at((lengths->size() - 1) / 2), lengths->back());
}

std::string describe_windows(data::Summary const& summary, std::int64_t sequence) {
  auto text = fmt::format("{}", data::count_windows(summary.tokens, sequence, false));
  if (summary.document_tokens) {
    std::int64_t within{};
    for (auto const length : *summary.document_tokens) {
      within += data::count_windows(length, sequence, true);
    }
    text += fmt::format("; {} where none crosses documents", within);
  }
  return text;
}

/// Describes the sequences that data.cross-documents=whole makes of the documents.
std::string describe_packing(data::Summary const& summary, std::int64_t sequence) {
  if (!summary.document_tokens) {
    return "not told by the format";
  }
  auto lengths = *summary.document_tokens;
  std::ranges::replace(lengths, 1, 0);  // nothing follows a token alone
  auto const packed = data::pack_windows(lengths, sequence + 1);
  auto const longer =
      std::ranges::count_if(lengths, [&](std::int64_t length) { return length > sequence + 1; });
  return fmt::format("{} windows; {} documents are longer than one", std::ssize(packed.begins) - 1,
                     longer);
}

void print(data::TokenFile const& file, data::Summary const& summary, std::int64_t sequence) {
  log::info("{}", file.path());
  log::info("  format           {}", name_of(file.format()));
  log::info("  token type       {}", name_of(file.type()));
  if (auto const note = data::note_beside(file.path())) {
    log::info("  tokenizer        {}", note->name);
  }
  log::info("  tokens           {}", summary.tokens);
  log::info("  documents        {}", describe(summary.document_tokens));
  log::info("  smallest token   {}", summary.smallest);
  log::info("  largest token    {}", summary.largest);
  log::info("  unigram entropy  {:.4f} nats", summary.unigram_entropy);
  log::info("  windows of {:<5} {}", sequence, describe_windows(summary, sequence));
  if (auto const mask = data::LossMask::beside(file, {})) {
    mask->verify(file);
    log::info("  whole documents  {}", describe_packing(summary, sequence));
    log::info("  mask             {}: {:.1f} % of the tokens count", mask->path(),
              100.0 * static_cast<double>(mask->counted()) / static_cast<double>(file.tokens()));
  }
}

std::string only_path(GivenOptions const& given) {
  if (!given.contains(position_name)) {
    throw UsageError{"data inspect takes a path: offstage data inspect PATH"};
  }
  auto const& paths = given[position_name].as<std::vector<std::string>>();
  if (paths.size() > 1) {
    throw UsageError{
        fmt::format("data inspect takes one argument, not {}; join files by commas: {}",
                    paths.size(), fmt::join(paths, ","))};
  }
  return paths.front();
}

/// A file and its share of a run's samples, as Dataset deals windows that cross documents.
struct Inspected {
  std::unique_ptr<data::TokenFile> file;
  double share{};
};

/// Opens the files of all sources. `what` is for all of them, but for the path.
std::vector<Inspected> open_files(std::vector<data::Source> const& sources, std::int64_t sequence,
                                  data::OpenTokens what) {
  std::vector<Inspected> files;
  std::size_t begin = 0;  // first file of those that share a weight
  double weights{};
  double windows{};
  for (std::size_t i = 0; i < sources.size(); ++i) {
    for (std::string const& path : data::expand_tokens(sources[i].path, what.key)) {
      what.path = path;
      files.push_back({data::open_tokens(what)});
      auto const count = data::count_windows(files.back().file->tokens(), sequence, false);
      files.back().share = static_cast<double>(count);
      windows += files.back().share;
    }
    if (sources[i].weight || i + 1 == sources.size()) {
      double const weight = sources[i].weight.value_or(1.0);
      for (; begin < files.size(); ++begin) {
        files[begin].share *= weight / std::max(windows, 1.0);
      }
      weights += weight;
      windows = 0.0;
    }
  }
  for (Inspected& each : files) {
    each.share /= weights;
  }
  return files;
}

ExitCode inspect(Arguments const& arguments) {
  po::options_description options;
  auto add = options.add_options();
  add(position_name, po::value<std::vector<std::string>>());
  add("format", po::value<std::string>()->default_value("auto"));
  add("vocab", po::value<std::string>()->default_value(std::to_string(largest_vocab)));
  add("sequence", po::value<std::string>()->default_value("1024"));
  add("separator", po::value<std::string>());
  auto const given = parse_command_options(arguments, options, "data", position_name);

  auto const format =
      choice<data::Format>(given, "format", {data::format_words.begin(), data::format_words.end()});
  auto const vocab = whole(given, "vocab", 1, largest_vocab);
  auto const sequence = whole(given, "sequence", 1, 1'000'000'000'000);
  std::optional<std::int32_t> separator;
  if (given.contains("separator")) {
    separator = static_cast<std::int32_t>(whole(given, "separator", 0, vocab - 1));
  }
  auto const files = open_files(data::parse_sources(only_path(given)), sequence,
                                {.path = {},
                                 .key = {},
                                 .format = format,
                                 .vocab = vocab,
                                 .vocab_key = "--vocab",
                                 .vocab_is_known = !given["vocab"].defaulted()});
  for (auto const& [file, share] : files) {
    print(*file, data::summarize(*file, separator), sequence);
    if (auto const doubt = file->doubt(); !doubt.empty()) {
      log::warning("{}: {}", file->path(), doubt);
    }
    if (files.size() > 1) {
      log::info("  share            {:.6g} %", 100.0 * share);
    }
  }
  return ExitCode::done;
}

}  // namespace

ExitCode data_command(Arguments const& arguments) {
  bool const of_pack = !arguments.empty() && arguments.front() == "pack";
  if (!of_pack && (arguments.empty() || asks_for_help(arguments))) {
    log::write_lines(data_usage);
    return arguments.empty() ? ExitCode::usage : ExitCode::done;
  }
  std::string const& command = arguments.front();
  Arguments const rest{arguments.begin() + 1, arguments.end()};
  if (command == "inspect") {
    return inspect(rest);
  }
  if (command == "pack") {
    return pack_command(rest);
  }
  static std::array<std::string, 2> const known{"inspect", "pack"};
  throw unknown_command(command, known);
}

}  // namespace offstage::cli
