#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <boost/program_options.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/units.hpp"
#include "cli/command_options.hpp"
#include "cli/commands.hpp"
#include "data/dataset.hpp"
#include "data/input_file.hpp"
#include "data/lookalikes.hpp"
#include "data/mixture.hpp"
#include "data/summary.hpp"
#include "data/text_documents.hpp"
#include "data/token_file.hpp"
#include "data/token_writer.hpp"
#include "data/tokenizer.hpp"

namespace offstage::cli {
namespace {

namespace po = boost::program_options;

constexpr char const* usage_text =
    "Usage: offstage data inspect PATH[:WEIGHT][,PATH...] [--format=F] [--vocab=N] [--sequence=T]\n"
    "                             [--separator=N]\n"
    "       offstage data pack --from TEXT... --to PREFIX --tokenizer=bytes|FILE.model\n"
    "                          --format=megatron|llmc|nanogpt [--documents=file|line|blank]\n"
    "\n"
    "inspect reads files of tokens through, as data.train names them, and says what is in them.\n"
    "  --format     auto, text (every byte is a token), megatron (X.bin with X.idx), llmc, nanogpt "
    "[auto]\n"
    "  --vocab      model.vocab: fails on the first token beyond it [16777216]\n"
    "  --sequence   train.sequence: how many windows of so many tokens there are [1024]\n"
    "  --separator  token that ends a document, for formats that do not store where they end\n"
    "pack turns text into PREFIX.bin, and PREFIX.idx for megatron. Nothing is overwritten.\n"
    "  --tokenizer  bytes, or a SentencePiece model; its end token </s> ends every document, in "
    "the\n"
    "               place of the line's end. Without such a token the line's end stays.\n"
    "  --documents  what a document is: the file, every line, or what stands between blank lines "
    "[file]\n"
    "\n"
    "  offstage data pack --from books/*.txt --to books --tokenizer=llama.model --format=megatron\n"
    "  offstage data inspect books --vocab=32000 --sequence=2048\n"
    "  offstage data inspect books.bin:0.7,wiki.bin:0.3\n"
    "  offstage data pack --from log.txt --to log --tokenizer=bytes --format=nanogpt "
    "--documents=line";

/// 2^24: counts of all tokens take 128 MiB.
constexpr std::int64_t largest_vocab = 16'777'216;

/// Of what stands without a name.
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

void print(data::TokenFile const& file, data::Summary const& summary, std::int64_t sequence) {
  log::info("{}", file.path());
  log::info("  format           {}", name_of(file.format()));
  log::info("  token type       {}", name_of(file.type()));
  log::info("  tokens           {}", summary.tokens);
  log::info("  documents        {}", describe(summary.document_tokens));
  log::info("  smallest token   {}", summary.smallest);
  log::info("  largest token    {}", summary.largest);
  log::info("  unigram entropy  {:.4f} nats", summary.unigram_entropy);
  log::info("  windows of {:<5} {}", sequence, describe_windows(summary, sequence));
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

ExitCode inspect(Arguments const& arguments) {
  po::options_description options;
  auto add = options.add_options();
  add(position_name, po::value<std::vector<std::string>>());
  add("format", po::value<std::string>()->default_value("auto"));
  add("vocab", po::value<std::string>()->default_value(std::to_string(largest_vocab)));
  add("sequence", po::value<std::string>()->default_value("1024"));
  add("separator", po::value<std::string>());
  auto const given = parse_command_options(arguments, options, "data", position_name);

  auto const format = choice<data::Format>(given, "format",
                                           {{"auto", data::Format::automatic},
                                            {"text", data::Format::text},
                                            {"megatron", data::Format::megatron},
                                            {"llmc", data::Format::llmc},
                                            {"nanogpt", data::Format::nanogpt}});
  auto const vocab = whole(given, "vocab", 1, largest_vocab);
  auto const sequence = whole(given, "sequence", 1, 1'000'000'000'000);
  std::optional<std::int32_t> separator;
  if (given.contains("separator")) {
    separator = static_cast<std::int32_t>(whole(given, "separator", 0, vocab - 1));
  }
  auto const sources = data::parse_sources(only_path(given));
  double weights{};
  for (data::Source const& source : sources) {
    weights += source.weight;
  }
  for (data::Source const& source : sources) {
    auto const file = data::open_tokens(
        {.path = source.path, .key = {}, .format = format, .vocab = vocab, .vocab_key = "--vocab"});
    print(*file, data::summarize(*file, separator), sequence);
    if (auto const doubt = file->doubt(); !doubt.empty()) {
      log::warning("{}: {}", file->path(), doubt);
    }
    if (sources.size() > 1) {
      log::info("  share            {:.6g} %", 100.0 * source.weight / weights);
    }
  }
  return ExitCode::done;
}

/// Adds a text to what is packed; its size.
Bytes pack_text(std::string const& path, data::Documents kind, data::Tokenizer const& tokenizer,
                data::TokenWriter& writer) {
  data::InputFile const file{path, "--from"};
  if (auto const found = data::find_lookalike(file)) {
    log::warning("{}: looks like {}, which becomes tokens as it stands; {}", file.name(),
                 found->name, found->advice);
  }
  data::TextDocuments documents{file, kind};
  data::TextDocuments::Document document;
  auto const end = tokenizer.end_of_document();
  while (documents.next(document)) {
    if (!end) {
      document.text += document.end;
    }
    writer.write(tokenizer.encode(document.text));
    // Without text there is nothing to end.
    if (end && !document.text.empty()) {
      writer.write(std::span{&*end, 1});
    }
    writer.end_document();
  }
  return file.size();
}

ExitCode pack(Arguments const& arguments) {
  po::options_description options;
  auto add = options.add_options();
  add("from", po::value<std::vector<std::string>>()->multitoken()->composing()->required());
  add("to", po::value<std::string>()->required());
  add("tokenizer", po::value<std::string>()->required());
  add("format", po::value<std::string>()->required());
  add("documents", po::value<std::string>()->default_value("file"));
  auto const given = parse_command_options(arguments, options, "data");

  auto const format = choice<data::Format>(given, "format",
                                           {{"megatron", data::Format::megatron},
                                            {"llmc", data::Format::llmc},
                                            {"nanogpt", data::Format::nanogpt}});
  auto const kind = choice<data::Documents>(given, "documents",
                                            {{"file", data::Documents::file},
                                             {"line", data::Documents::line},
                                             {"blank", data::Documents::blank}});
  auto const& prefix = given["to"].as<std::string>();
  if (prefix.ends_with(".bin") || prefix.ends_with(".idx") || prefix.ends_with('/') ||
      prefix.empty()) {
    throw UsageError{fmt::format("--to={} is no prefix; .bin and .idx are added to it", prefix)};
  }
  auto const& texts = given["from"].as<std::vector<std::string>>();
  for (std::string const& text : texts) {
    data::InputFile const must_open{text, "--from"};  // found out before hours of work on others
  }
  auto const tokenizer = data::open_tokenizer(given["tokenizer"].as<std::string>(), "--tokenizer");
  data::TokenWriter writer{prefix, format, tokenizer->vocab()};
  Bytes bytes{};
  for (std::string const& text : texts) {
    bytes += pack_text(text, kind, *tokenizer, writer);
  }
  writer.commit();
  log::info("{}.bin: {} tokens of type {} in {} documents from {} bytes, {:.2f} bytes a token",
            prefix, writer.tokens(), name_of(writer.type()), writer.documents(), bytes,
            static_cast<double>(bytes) / static_cast<double>(writer.tokens()));
  return ExitCode::done;
}

}  // namespace

ExitCode data_command(Arguments const& arguments) {
  if (arguments.empty() || asks_for_help(arguments)) {
    log::write_lines(usage_text);
    return arguments.empty() ? ExitCode::usage : ExitCode::done;
  }
  std::string const& command = arguments.front();
  Arguments const rest{arguments.begin() + 1, arguments.end()};
  if (command == "inspect") {
    return inspect(rest);
  }
  if (command == "pack") {
    return pack(rest);
  }
  static std::array<std::string, 2> const known{"inspect", "pack"};
  throw unknown_command(command, known);
}

}  // namespace offstage::cli
