#include "cli/inspect_command.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "cli/command_options.hpp"
#include "cli/show_documents.hpp"
#include "data/dataset.hpp"
#include "data/globs.hpp"
#include "data/loss_mask.hpp"
#include "data/mixture.hpp"
#include "data/summary.hpp"
#include "data/token_file.hpp"
#include "data/tokenizer_note.hpp"
#include "data/window_packing.hpp"
#include "tokens/open_tokenizer.hpp"
#include "train/report/json_line.hpp"

namespace offstage::cli {
namespace {

namespace po = boost::program_options;
using Json = nlohmann::ordered_json;

/// Limit of a vocabulary, 2^24. Counts of all its tokens take 128 MiB.
constexpr std::int64_t largest_vocab = 16'777'216;

/// Name of the option that takes arguments without a name.
constexpr char const* position_name = "path";

std::int64_t whole(GivenOptions const& given, std::string const& option, std::int64_t least,
                   std::int64_t most) {
  return number(option, given[option].as<std::string>(), least, most);
}

/// Facts on a mask, and on the windows that data.cross-documents=whole makes of its conversations.
struct MaskFacts {
  std::string path;
  double counted{};                                ///< part of the tokens
  std::optional<std::int64_t> packed{}, longer{};  ///< windows; documents that are longer than one
};

/// Facts on a file for windows of `sequence` tokens.
struct Facts {
  data::TokenFile const& file;
  data::Summary summary;
  std::int64_t sequence{};
  std::int64_t windows{};
  std::optional<std::int64_t> within{};  ///< windows where none crosses documents
  std::optional<data::TokenizerNote> tokenizer{};
  std::optional<MaskFacts> mask{};
};

std::int64_t count_within(std::vector<std::int64_t> const& lengths, std::int64_t sequence) {
  std::int64_t within{};
  for (auto const length : lengths) {
    within += data::count_windows(length, sequence, true);
  }
  return within;
}

MaskFacts look_at_mask(data::LossMask const& mask, data::TokenFile const& file,
                       data::Summary const& summary, std::int64_t sequence) {
  mask.verify(file);
  MaskFacts facts{mask.path(),
                  static_cast<double>(mask.counted()) / static_cast<double>(file.tokens())};
  if (summary.document_tokens) {
    auto lengths = *summary.document_tokens;
    std::ranges::replace(lengths, 1, 0);  // nothing follows a token alone
    facts.packed = std::ssize(data::pack_windows(lengths, sequence + 1).begins) - 1;
    facts.longer =
        std::ranges::count_if(lengths, [&](std::int64_t length) { return length > sequence + 1; });
  }
  return facts;
}

/// The mask beside a file; null if there is none, with a warning if there should be one.
std::unique_ptr<data::LossMask> mask_beside(data::TokenFile const& file) {
  auto mask = data::LossMask::beside(file, {});
  if (auto const loss = mask ? std::string{} : data::LossMask::loss_of(file); !loss.empty()) {
    log::warning("{}", loss);
  }
  return mask;
}

Facts look_at(data::TokenFile const& file, data::LossMask const* mask,
              std::optional<std::int32_t> separator, std::int64_t sequence) {
  Facts facts{.file = file,
              .summary = data::summarize(file, separator),
              .sequence = sequence,
              .windows = data::count_windows(file.tokens(), sequence, false),
              .tokenizer = data::note_beside(file.path())};
  if (facts.summary.document_tokens) {
    facts.within = count_within(*facts.summary.document_tokens, sequence);
  }
  if (mask != nullptr) {
    facts.mask = look_at_mask(*mask, file, facts.summary, sequence);
  }
  return facts;
}

/// The median of ascending numbers, of which there are some.
std::int64_t median(std::vector<std::int64_t> const& ascending) {
  return ascending[(ascending.size() - 1) / 2];
}

std::string describe(std::optional<std::vector<std::int64_t>> const& lengths) {
  return lengths ? fmt::format("{}; tokens: shortest {}, median {}, longest {}", lengths->size(),
                               lengths->front(), median(*lengths), lengths->back())
                 : "not told by the format; --separator=N if a token ends them";
}

void print(Facts const& facts) {
  auto const& summary = facts.summary;
  log::info("{}", facts.file.path());
  log::info("  format           {}", name_of(facts.file.format()));
  log::info("  token type       {}", name_of(facts.file.type()));
  if (facts.tokenizer) {
    auto const& [name, sample, bytes, vocab, is_masked] = *facts.tokenizer;
    log::info("  tokenizer        {}{}", name, vocab > 0 ? fmt::format(", {} tokens", vocab) : "");
  }
  log::info("  tokens           {}", summary.tokens);
  log::info("  documents        {}", describe(summary.document_tokens));
  log::info("  smallest token   {}", summary.smallest);
  log::info("  largest token    {}", summary.largest);
  log::info("  unigram entropy  {:.4f} nats", summary.unigram_entropy);
  log::info("  windows of {:<5} {}{}", facts.sequence, facts.windows,
            facts.within ? fmt::format("; {} where none crosses documents", *facts.within) : "");
  if (auto const& mask = facts.mask) {
    log::info("  whole documents  {}",
              mask->packed ? fmt::format("{} windows; {} documents are longer than one",
                                         *mask->packed, *mask->longer)
                           : "not told by the format");
    log::info("  mask             {}: {:.1f} % of the tokens count", mask->path,
              100.0 * mask->counted);
  }
}

Json or_null(std::optional<std::int64_t> const& number) {
  return number ? Json(*number) : Json();
}

std::optional<std::int64_t> vocab_of(std::optional<data::TokenizerNote> const& note) {
  return note && note->vocab > 0 ? std::optional{note->vocab} : std::nullopt;
}

Json documents_of(std::optional<std::vector<std::int64_t>> const& lengths) {
  return lengths ? Json{{"count", lengths->size()},
                        {"shortest", lengths->front()},
                        {"median", median(*lengths)},
                        {"longest", lengths->back()}}
                 : Json();
}

Json mask_of(std::optional<MaskFacts> const& mask) {
  return mask ? Json{{"path", mask->path},
                     {"counted", mask->counted},
                     {"packed_windows", or_null(mask->packed)},
                     {"documents_longer_than_a_window", or_null(mask->longer)}}
              : Json();
}

Json record_of(Facts const& facts, double share) {
  auto const& summary = facts.summary;
  return {{"path", facts.file.path()},
          {"format", name_of(facts.file.format())},
          {"type", name_of(facts.file.type())},
          {"tokenizer", facts.tokenizer ? Json(facts.tokenizer->name) : Json()},
          {"vocab", or_null(vocab_of(facts.tokenizer))},
          {"tokens", summary.tokens},
          {"documents", documents_of(summary.document_tokens)},
          {"smallest_token", summary.smallest},
          {"largest_token", summary.largest},
          {"unigram_entropy", summary.unigram_entropy},
          {"sequence", facts.sequence},
          {"windows", facts.windows},
          {"windows_within_documents", or_null(facts.within)},
          {"mask", mask_of(facts.mask)},
          {"share", share}};
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

/// The tokenizer to show a file with: the one that was given, or the note's.
std::unique_ptr<data::Tokenizer> tokenizer_of(std::string const& path,
                                              std::optional<std::string> const& given) {
  auto const note = data::note_beside(path);
  if (!given && !note) {
    throw UsageError{
        fmt::format("--show: no note beside {} names its tokenizer; give --tokenizer=NAME", path)};
  }
  try {
    auto tokenizer = tokens::open_tokenizer(given ? *given : note->name, "--tokenizer");
    if (note && data::sample_of(*tokenizer) != note->sample) {
      log::warning("--tokenizer={}: the tokens of {} are those of another one, {}",
                   given ? *given : note->name, path, note->name);
    }
    return tokenizer;
  } catch (Error const& error) {
    if (given) {
      throw;
    }
    throw DataError{
        fmt::format("{}; its name is that of the note beside {}, as it was given to data pack: "
                    "give --tokenizer=NAME from here",
                    error.what(), path)};
  }
}

/// The first tokens of documents, or without any of windows.
struct Parts {
  std::vector<std::int64_t> begins;
  char const* name;
};

/// The parts of a file: documents if they are told apart, else the first `wanted` windows and one
/// more, at whose begin the last of them ends.
Parts parts_of(data::TokenFile const& file, std::optional<std::int32_t> separator,
               std::int64_t sequence, std::int64_t wanted) {
  auto documents = file.documents();
  if (!documents && separator) {
    documents = data::documents_by_separator(file, *separator);
  }
  if (documents) {
    return {*std::move(documents), "document"};
  }
  Parts windows{{}, "window"};
  for (std::int64_t i = 0; i <= wanted && i * sequence < file.tokens(); ++i) {
    windows.begins.push_back(i * sequence);
  }
  return windows;
}

}  // namespace

ExitCode inspect_command(Arguments const& arguments) {
  po::options_description options;
  auto add = options.add_options();
  add(position_name, po::value<std::vector<std::string>>());
  add("format", po::value<std::string>()->default_value("auto"));
  add("vocab", po::value<std::string>()->default_value(std::to_string(largest_vocab)));
  add("sequence", po::value<std::string>()->default_value("1024"));
  add("separator", po::value<std::string>());
  add("json", po::bool_switch());
  add("show", po::value<std::string>()->default_value("0"));
  add("tokenizer", po::value<std::string>());
  auto const given = parse_command_options(arguments, options, "data", position_name);

  auto const format = choice<data::Format>("format", text_of(given, "format"),
                                           {data::format_words.begin(), data::format_words.end()});
  auto const vocab = whole(given, "vocab", 1, largest_vocab);
  auto const sequence = whole(given, "sequence", 1, 1'000'000'000'000);
  std::optional<std::int32_t> separator;
  if (given.contains("separator")) {
    separator = static_cast<std::int32_t>(whole(given, "separator", 0, vocab - 1));
  }
  bool const as_json = given["json"].as<bool>();
  auto const wanted = whole(given, "show", 0, 1'000'000);
  if (as_json && wanted > 0) {
    throw UsageError{"--show is for people, and --json for scripts; give one of them"};
  }
  if (given.contains("tokenizer") && wanted == 0) {
    throw UsageError{"--tokenizer has an effect with --show=N alone"};
  }
  auto const tokenizer_name = given.contains("tokenizer")
                                  ? std::optional{given["tokenizer"].as<std::string>()}
                                  : std::nullopt;
  auto const files = open_files(data::parse_sources(only_path(given)), sequence,
                                {.path = {},
                                 .key = {},
                                 .format = format,
                                 .vocab = vocab,
                                 .vocab_key = "--vocab",
                                 .vocab_is_known = !given["vocab"].defaulted()});
  for (auto const& [file, share] : files) {
    auto const tokenizer = wanted > 0 ? tokenizer_of(file->path(), tokenizer_name) : nullptr;
    auto const mask = mask_beside(*file);
    auto const facts = look_at(*file, mask.get(), separator, sequence);
    if (as_json) {
      log::write_lines(train::json_line(record_of(facts, share)));
    } else {
      print(facts);
    }
    if (auto const doubt = file->doubt(); !doubt.empty()) {
      log::warning("{}: {}", file->path(), doubt);
    }
    if (files.size() > 1 && !as_json) {
      log::info("  share            {:.6g} %", 100.0 * share);
    }
    if (tokenizer) {
      auto const parts = parts_of(*file, separator, sequence, wanted);
      show_parts({*file, mask.get(), *tokenizer}, parts.begins, wanted, parts.name);
    }
  }
  return ExitCode::done;
}

}  // namespace offstage::cli
