#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.hpp"
#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/regular_file.hpp"
#include "base/team.hpp"
#include "cli/command_options.hpp"
#include "cli/commands.hpp"
#include "cli/prompts.hpp"
#include "cli/run_directory.hpp"
#include "convert/convert.hpp"
#include "data/tokenizer.hpp"
#include "generate/generator.hpp"
#include "generate/language_model.hpp"
#include "generate/stop_texts.hpp"
#include "generate/text_stream.hpp"
#include "pack/conversation.hpp"
#include "pack/template.hpp"
#include "tokens/beside.hpp"
#include "tokens/open_tokenizer.hpp"
#include "train/report/json_line.hpp"

namespace offstage::cli {
namespace {

namespace po = boost::program_options;

constexpr char const* generate_usage =
    R"(Usage: offstage generate --from PATH [--prompt TEXT | --prompt-tokens N,N...] [--option ...]

Continues a text with a model. Prints the prompt and each token as it comes. Runs as one process.
  --from PATH           a checkpoint (step-...), a run or directory of checkpoints, whose newest
                        complete one is taken, RUN/best for the one with the best validation,
                        or a Hugging Face directory
  --prompt TEXT         text to continue [the end of a document, or of a line if the tokenizer has
                        no token for a document's end]
  --prompt-tokens N,N   the prompt as numbers of tokens
  --prompt-file FILE    the text of FILE is the prompt; - is standard input
  --prompt-lines FILE   every line of FILE that is not blank is a prompt; a line --- is printed
                        between the answers
  --messages FILE       with --template: every line of FILE is a conversation of JSON, as data pack
                        takes them; the model answers its last message, or in place of its last
                        answer, which --json has beside the model's
  --template FILE       the prompt is a user's message, and the model answers up to the template's
                        eos. The role is the one in front of the first learned role; see
                        configs/templates
  --system TEXT         with --template: a message of the role system before the prompt
  --add-special-tokens yes|no  begins a prompt of text with the tokens that the tokenizer puts
                        before texts; no: for a model that was trained without them [yes]
  --tokens N            most tokens to add; fewer if the document ends [200]
  --temperature X       0 takes the likeliest token, 1 follows the model's probabilities [0]
  --top-k N             takes one of the N likeliest tokens; 0: of all [0]
  --top-p X             takes one of the likeliest tokens whose probabilities add up to X [1]
  --stop TEXT           ends before TEXT, which is not printed; may be given several times
  --seed N              number that decides the random choices; each prompt has its own [0]
  --tokenizer NAME      bytes, a tokenizer.json, a SentencePiece FILE.model, a directory with a
                        tokenizer.json or a tokenizer.model, or none to print numbers of tokens
                        [that of a Hugging Face directory; bytes if the model's vocabulary is 256]
  --dtype fp32|bf16     type of the model's computation [fp32]
  --json                for each prompt a line of JSON, with the continuation and why it ended

  offstage generate --from run/checkpoints --prompt 'Once upon a time' --temperature 0.8)";

constexpr std::string_view no_tokenizer = "none";

struct NamedText {
  std::string path;
  std::string text;
};

struct Options {
  std::string from;
  std::vector<std::string> prompts;        ///< texts; empty: no prompt was given
  std::optional<NamedText> conversations;  ///< --messages
  bool many = false;                       ///< prompts are lines of a file
  std::optional<std::vector<std::int32_t>> prompt_tokens;
  bool add_special = true;  ///< --add-special-tokens
  std::int64_t tokens = 200;
  generate::Sampling sampling;
  std::vector<std::string> stops;
  std::optional<std::string> tokenizer;
  std::optional<std::string> form;    ///< --template
  std::optional<std::string> system;  ///< --system
  DType dtype = DType::fp32;
  bool as_json = false;
};

std::vector<std::int32_t> token_list(std::string const& option, std::string_view text) {
  std::vector<std::int32_t> tokens;
  for (std::size_t begin = 0; begin <= text.size();) {
    std::size_t const comma = std::min(text.find(',', begin), text.size());
    tokens.push_back(number<std::int32_t>(option, text.substr(begin, comma - begin), 0,
                                          std::numeric_limits<std::int32_t>::max()));
    begin = comma + 1;
  }
  return tokens;
}

GivenOptions parse_generate(Arguments const& arguments) {
  po::options_description known;
  for (char const* const name :
       {"from", "prompt", "prompt-tokens", "prompt-file", "prompt-lines", "messages", "tokens",
        "temperature", "top-k", "top-p", "seed", "tokenizer", "template", "system"}) {
    known.add_options()(name, po::value<std::string>());
  }
  known.add_options()("stop", po::value<std::vector<std::string>>()->composing());
  known.add_options()("add-special-tokens", po::value<std::string>());
  known.add_options()("dtype", po::value<std::string>()->default_value("fp32"));
  known.add_options()("json", po::bool_switch());
  return parse_command_options(arguments, known, "generate");
}

/// Checks options against each other.
void check(Options const& options, GivenOptions const& given) {
  int prompts = 0;
  for (char const* const name :
       {"prompt", "prompt-tokens", "prompt-file", "prompt-lines", "messages"}) {
    prompts += given.contains(name) ? 1 : 0;
  }
  if (prompts > 1) {
    throw UsageError{
        "--prompt, --prompt-tokens, --prompt-file, --prompt-lines and --messages say the same; "
        "give one of them"};
  }
  bool const has_text = !options.prompts.empty() || options.conversations;
  if (has_text && options.tokenizer == no_tokenizer) {
    throw UsageError{"--prompt needs a tokenizer; with --tokenizer=none give --prompt-tokens"};
  }
  if (given.contains("add-special-tokens") && (options.form || options.prompts.empty())) {
    throw UsageError{
        "--add-special-tokens has an effect on a prompt of text alone, without --template, which "
        "says where {bos} stands"};
  }
  for (auto const& [name, is_set] : {std::pair{"top-k", options.sampling.top_k > 0},
                                     std::pair{"top-p", options.sampling.top_p < 1.0},
                                     std::pair{"seed", options.sampling.seed != 0}}) {
    if (is_set && options.sampling.temperature == 0.0) {
      log::warning("--{} has no effect with --temperature=0; --temperature=1 samples", name);
    }
  }
  if (options.form && !has_text) {
    throw UsageError{
        "--template needs a prompt of text, or conversations; give --prompt or --messages with "
        "it"};
  }
  if (options.conversations && !options.form) {
    throw UsageError{
        "--messages needs a template, which says how they become text; give --template with it"};
  }
  if (options.conversations && options.system) {
    throw UsageError{"--system has no place beside --messages, which may have one of their own"};
  }
  if (options.system && !options.form) {
    throw UsageError{
        "--system needs a template, which says how it becomes text; give --template with it"};
  }
  if (!options.stops.empty() && options.tokenizer == no_tokenizer) {
    throw UsageError{"--stop needs a tokenizer; --tokenizer=none makes no text"};
  }
  if (std::ranges::find(options.stops, "") != options.stops.end()) {
    throw UsageError{"--stop is empty; give the text that ends the continuation"};
  }
}

Options options_of(Arguments const& arguments) {
  auto const given = parse_generate(arguments);
  Options options;
  auto const take = [&](char const* name, auto const& use) {
    if (given.contains(name)) {
      use(given[name].template as<std::string>());
    }
  };
  take("from", [&](std::string const& text) { options.from = text; });
  take("prompt", [&](std::string const& text) { options.prompts = {text}; });
  take("prompt-file",
       [&](std::string const& path) { options.prompts = {read_prompt(path, "--prompt-file")}; });
  take("prompt-lines", [&](std::string const& path) {
    options.prompts = lines_of(read_prompt(path, "--prompt-lines"));
    std::erase(options.prompts, "");
    options.many = true;
    if (options.prompts.empty()) {
      throw DataError{fmt::format("--prompt-lines={}: has no line with a prompt", path)};
    }
  });
  take("messages", [&](std::string const& path) {
    options.conversations = NamedText{path, read_prompt(path, "--messages")};
    options.many = true;
  });
  take("prompt-tokens",
       [&](std::string const& text) { options.prompt_tokens = token_list("prompt-tokens", text); });
  take("tokens", [&](std::string const& text) {
    options.tokens = number<std::int64_t>("tokens", text, 1, 1'000'000'000);
  });
  take("temperature", [&](std::string const& text) {
    options.sampling.temperature = number<double>("temperature", text, 0.0, 1000.0);
  });
  take("top-k", [&](std::string const& text) {
    options.sampling.top_k = number<std::int64_t>("top-k", text, 0, 1'000'000'000);
  });
  take("top-p", [&](std::string const& text) {
    options.sampling.top_p = number<double>("top-p", text, 1e-9, 1.0);
  });
  if (given.contains("stop")) {
    options.stops = given["stop"].as<std::vector<std::string>>();
  }
  take("seed", [&](std::string const& text) {
    options.sampling.seed = number<std::uint64_t>("seed", text, 0, ~std::uint64_t{});
  });
  take("tokenizer", [&](std::string const& text) { options.tokenizer = text; });
  take("template", [&](std::string const& text) { options.form = text; });
  take("system", [&](std::string const& text) { options.system = text; });
  take("add-special-tokens", [&](std::string const&) {
    options.add_special = choice<bool>("add-special-tokens", text_of(given, "add-special-tokens"),
                                       {{"yes", true}, {"no", false}});
  });
  options.dtype = choice<DType>("dtype", text_of(given, "dtype"),
                                {{"fp32", DType::fp32}, {"bf16", DType::bf16}});
  options.as_json = given["json"].as<bool>();
  if (options.from.empty()) {
    throw UsageError{"--from is missing; give a checkpoint or a Hugging Face directory"};
  }
  check(options, given);
  return options;
}

/// The name by which to open a tokenizer if the user gives none; empty if there is no tokenizer.
std::string default_tokenizer(Options const& options, std::int64_t vocab) {
  for (char const* const name : {"tokenizer.json", "tokenizer.model"}) {
    if (is_visible(options.from + "/" + name)) {
      return options.from;
    }
  }
  return vocab == 256 ? "bytes" : "";
}

tokens::Beside beside_of(std::string const& tokenizer) {
  auto const file = tokens::tokenizer_file(tokenizer);
  return file ? tokens::read_beside(*file, "--tokenizer") : tokens::Beside{};
}

/// The tokenizer; null if there is none.
std::unique_ptr<data::Tokenizer> tokenizer_of(Options const& options, std::int64_t vocab) {
  if (options.tokenizer == no_tokenizer) {
    return nullptr;
  }
  auto const name = options.tokenizer.value_or(default_tokenizer(options, vocab));
  if (name.empty()) {
    throw UsageError{fmt::format(
        "--tokenizer is missing, and the model of --from={} has {} tokens, so they are no bytes; "
        "give the tokenizer.json or the SentencePiece model that it was trained with, or "
        "--tokenizer=none for numbers",
        options.from, vocab)};
  }
  auto tokenizer = tokens::open_tokenizer(name, "--tokenizer");
  if (tokens::vocab_of_texts(*tokenizer, beside_of(name)) > vocab) {
    throw UsageError{fmt::format(
        "--tokenizer={} has {} tokens, but the model of --from={} only {}; take the tokenizer that "
        "the model was trained with",
        name, tokenizer->vocab(), options.from, vocab)};
  }
  return tokenizer;
}

/// The tokens that end a text: the tokenizer's, and those that the model's files beside it name.
std::vector<std::int32_t> ends_of(Options const& options, data::Tokenizer const* tokenizer,
                                  std::int64_t vocab) {
  std::vector<std::int32_t> ends;
  if (tokenizer == nullptr) {
    return ends;
  }
  auto const name = options.tokenizer.value_or(default_tokenizer(options, vocab));
  ends = beside_of(name).ends;
  if (auto const end = tokenizer->end_of_document()) {
    ends.push_back(*end);
  }
  return ends;
}

/// The tokens from which to start if the user gives none; the model has them.
std::vector<std::int32_t> default_start(data::Tokenizer const* tokenizer) {
  if (tokenizer == nullptr) {
    return {0};
  }
  if (auto const end = tokenizer->end_of_document()) {
    return {*end};
  }
  auto const line_end = tokenizer->encode("\n");
  return line_end.empty() ? std::vector<std::int32_t>{0} : line_end;
}

/// The template, if there is one. Errors: also UsageError if no role of the template asks before
/// the answer, or if --system has none.
std::optional<pack::Template> template_of(Options const& options,
                                          data::Tokenizer const* tokenizer) {
  if (!options.form) {
    return std::nullopt;
  }
  auto form = pack::read_template(*options.form, "--template", *tokenizer);
  if (options.conversations) {
    return form;
  }
  if (form.asks() == nullptr) {
    throw UsageError{fmt::format(
        "--template={}: no role stands in front of {}, which answers; a prompt needs one",
        *options.form, form.answers().name)};
  }
  bool const has_place =
      form.role(pack::Template::system_role) != nullptr &&
      (!form.puts_system_inside() || form.asks()->takes_system || form.answers().takes_system);
  if (options.system && !has_place) {
    throw UsageError{fmt::format("--system: --template={} has no place for it; its roles are {}",
                                 *options.form, form.role_names())};
  }
  return form;
}

/// The prompts as tokens. There is one at least, which may be empty. A text begins as the tokenizer
/// begins texts, unless the user says otherwise.
std::vector<Prompt> prompts_of(Options const& options, data::Tokenizer const* tokenizer,
                               pack::Template const* form, std::int64_t vocab) {
  std::vector<Prompt> prompts;
  if (options.prompt_tokens) {
    for (std::int32_t const token : *options.prompt_tokens) {
      if (token >= vocab) {
        throw UsageError{
            fmt::format("--prompt-tokens: {} is no token; they are 0 to {}", token, vocab - 1)};
      }
    }
    prompts.push_back({.tokens = *options.prompt_tokens});
  }
  if (options.conversations) {
    auto const place = fmt::format("--messages={}", options.conversations->path);
    prompts = prompts_of_conversations(options.conversations->text, place, *form, *tokenizer);
    if (prompts.empty()) {
      throw DataError{fmt::format("{}: has no line with a conversation", place)};
    }
  }
  for (std::string const& text : options.prompts) {
    auto& prompt = prompts.emplace_back(Prompt{.text = text});
    if (form != nullptr) {
      std::vector<pack::Message> messages;
      if (options.system) {
        messages.push_back({form->role(pack::Template::system_role), *options.system});
      }
      messages.push_back({form->asks(), text});
      prompt.tokens = pack::ConversationEncoder{*form, *tokenizer}.prompt(messages);
      continue;
    }
    if (options.add_special) {
      prompt.tokens = tokenizer->frame().before;
    }
    tokenizer->encoder()->encode(text, prompt.tokens);
  }
  for (auto const& [tokens, text, answer] : prompts) {
    if (!tokens.empty() && std::ranges::max(tokens) >= vocab) {
      throw UsageError{fmt::format(
          "--prompt: its token {} is the pad token, which the model lacks: it has tokens 0 to {}",
          std::ranges::max(tokens), vocab - 1)};
    }
  }
  return prompts.empty() ? std::vector<Prompt>(1) : prompts;
}

/// Prints tokens as they come, or keeps what it would print: text up to a stop text, or numbers. A
/// terminal gets nothing that would command it.
class Printer {
 public:
  Printer(data::Tokenizer const* tokenizer, std::vector<std::string> stops, bool keeps)
      : stops_{std::move(stops)}, keeps_{keeps} {
    if (tokenizer != nullptr) {
      text_.emplace(*tokenizer);
    }
  }
  void pass_over(std::int32_t token) {
    if (text_) {
      text_->pass_over(token);
    }
  }
  /// Adds a token of the prompt, in which stop texts have no effect.
  void add_prompt(std::int32_t token) { print(piece_of(token)); }
  /// Adds a token. Returns false if the text is at its end.
  bool add(std::int32_t token) {
    print(stops_.add(piece_of(token)));
    return !stops_.stopped();
  }
  void finish() {
    print(stops_.add(text_ ? text_->finish() : std::string{}));
    print(stops_.finish());
    if (last_ != '\n' && !keeps_) {
      print("\n");
    }
  }
  [[nodiscard]] bool stopped() const { return stops_.stopped(); }
  [[nodiscard]] std::string const& kept() const { return kept_; }
  void print(std::string const& text) {
    if (text.empty()) {
      return;
    }
    last_ = text.back();
    if (keeps_) {
      kept_ += text;
      return;
    }
    std::string const shown = is_terminal_ ? printable_text(text) : text;
    if (std::fwrite(shown.data(), 1, shown.size(), stdout) != shown.size() ||
        std::fflush(stdout) != 0) {
      throw IoError{"cannot write to", "standard output", errno};
    }
  }

 private:
  std::string piece_of(std::int32_t token) {
    auto piece = text_ ? text_->add(token) : fmt::format("{}{}", any_ ? " " : "", token);
    any_ = true;
    return piece;
  }

  std::optional<generate::TextStream> text_;
  generate::StopTexts stops_;
  bool keeps_;
  bool is_terminal_ = ::isatty(STDOUT_FILENO) != 0;
  std::string kept_;
  bool any_ = false;
  char last_ = '\n';
};

/// A continuation. Its text is empty where it was printed.
struct Continuation {
  std::string text;
  std::int64_t tokens{};  ///< the text's, with those of --stop, without a token that ends it
  char const* end{};      ///< "end": the model ended its text; "stop": --stop; "tokens": --tokens
};

/// Prints a prompt and the model's continuation, or keeps the continuation.
Continuation continue_prompt(generate::Task task, generate::LanguageModel& model,
                             data::Tokenizer const* tokenizer,
                             std::vector<std::string> const& stops, bool keeps) {
  Printer printer{tokenizer, stops, keeps};
  for (std::int32_t const token : task.prompt) {
    keeps ? printer.pass_over(token) : printer.add_prompt(token);
  }
  if (task.prompt.empty()) {
    task.prompt = default_start(tokenizer);
    std::ranges::for_each(task.prompt, [&](std::int32_t token) { printer.pass_over(token); });
  }
  bool forgets = false;
  Continuation made;
  generate::generate(
      task, [&](std::span<std::int32_t const> tokens) { return model.logits(tokens); },
      [&](std::int32_t token) {
        ++made.tokens;
        return printer.add(token);
      },
      [&] { forgets = true; });
  made.end = printer.stopped() ? "stop" : made.tokens < task.tokens ? "end" : "tokens";
  printer.finish();
  made.text = printer.kept();
  if (forgets) {  // not in the middle of the text
    log::warning(
        "the text is longer than the {} tokens that the model can look at (model.max-sequence): it "
        "forgets the older half whenever they are full",
        task.window);
  }
  return made;
}

/// Bytes that are no UTF-8 are replaced.
std::string record_of(Prompt const& prompt, Continuation const& made) {
  nlohmann::ordered_json record;
  if (prompt.text) {
    record["prompt"] = *prompt.text;
  }
  if (prompt.answer) {
    record["answer"] = *prompt.answer;
  }
  record["prompt_tokens"] = prompt.tokens.size();
  record["text"] = made.text;
  record["tokens"] = made.tokens;
  record["end"] = made.end;
  return train::json_line(record);
}

}  // namespace

ExitCode generate_command(Arguments const& arguments) {
  if (arguments.empty() || asks_for_help(arguments)) {
    log::write_lines(generate_usage);
    return arguments.empty() ? ExitCode::usage : ExitCode::done;
  }
  Options const options = options_of(arguments);
  auto const reader = convert::open_parameters(given_checkpoints(options.from), "--from");
  state::ModelShape const shape = reader->shape();
  auto const tokenizer = tokenizer_of(options, shape.vocab);

  generate::Task task;
  task.vocab = tokenizer ? std::min(tokenizer->vocab(), shape.vocab) : shape.vocab;
  task.tokens = options.tokens;
  task.window = shape.max_sequence;
  task.ends = ends_of(options, tokenizer.get(), shape.vocab);
  task.sampling = options.sampling;

  auto const form = template_of(options, tokenizer.get());
  if (form && form->eos) {
    task.ends.push_back(*form->eos);
  }
  auto const prompts = prompts_of(options, tokenizer.get(), form ? &*form : nullptr, task.vocab);
  require_team();
  auto const model = generate::load(*reader, options.dtype);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (options.many && i > 0 && !options.as_json) {
      std::fputs("---\n", stdout);
    }
    task.prompt = prompts[i].tokens;
    task.number = static_cast<std::uint32_t>(i);
    auto const made =
        continue_prompt(task, *model, tokenizer.get(), options.stops, options.as_json);
    if (options.as_json) {
      log::write_lines(record_of(prompts[i], made));
    }
  }
  return ExitCode::done;
}

}  // namespace offstage::cli
