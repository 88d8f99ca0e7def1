#include "cli/pack_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/stopwatch.hpp"
#include "base/units.hpp"
#include "cli/command_options.hpp"
#include "data/input_file.hpp"
#include "data/lookalikes.hpp"
#include "data/token_writer.hpp"
#include "pack/globs.hpp"
#include "pack/packer.hpp"
#include "pack/template.hpp"
#include "tokens/open_tokenizer.hpp"

namespace offstage::cli {
namespace {

namespace po = boost::program_options;

constexpr char const* usage_text =
    "Usage: offstage data pack --from TEXT... --to PREFIX --tokenizer=NAME --format=F [--option "
    "...]\n"
    "\n"
    "Turns text into PREFIX.bin, and PREFIX.idx for megatron; with --template conversations, and "
    "PREFIX.mask\n"
    "says which of their tokens count in the loss. Nothing is overwritten; the files get their "
    "names when they\n"
    "are whole.\n"
    "  --from TEXT...        text, or JSON lines where the name ends in .jsonl; also as .gz or "
    ".zst; '*', '?'\n"
    "                        and [abc] stand for several files\n"
    "  --to PREFIX           what to write\n"
    "  --tokenizer NAME      bytes, a tokenizer.json or a directory with one, or a SentencePiece "
    "FILE.model\n"
    "  --format F            megatron, llmc or nanogpt\n"
    "  --documents KIND      a document is the file, every line, what stands between blank lines "
    "(blank), or a\n"
    "                        field of every line, which is a JSON object (jsonl) [jsonl for "
    ".jsonl, else file]\n"
    "  --field NAME          the field of JSON lines that is the text [text], or an array of "
    "messages [messages]\n"
    "  --template FILE       JSON lines are conversations: messages with role and content, or "
    "fields that are\n"
    "                        roles of the template (prompt, completion); FILE says how roles "
    "become "
    "text and\n"
    "                        what of it is learned; see configs/templates\n"
    "  --longest N           conversations of more tokens are left out, and counted; 0: none are "
    "[0]\n"
    "  --end-token TOKEN     ends every document, in the place of the line's end: a token's text, "
    "'</s>'; auto\n"
    "                        takes the tokenizer's own; without one, or with none, the line's end "
    "stays [auto]\n"
    "  --add-special-tokens yes|no  what the tokenizer puts around a text, a beginning say [no]\n"
    "  --threads N           that encode [the cores that this process may use]\n"
    "  --progress SECONDS    between lines that say how far it is; 0: none [10]\n"
    "\n"
    "  offstage data pack --from 'web/*.jsonl.zst' --to web --tokenizer=llama/tokenizer.json "
    "--format=megatron\n"
    "  offstage data pack --from chats.jsonl --to chats --tokenizer=qwen --format=megatron "
    "--template=chatml.txt\n"
    "  offstage data pack --from log.txt --to log --tokenizer=bytes --format=nanogpt "
    "--documents=line";

GivenOptions parse(Arguments const& arguments) {
  po::options_description options;
  auto add = options.add_options();
  auto const text = [] { return po::value<std::string>(); };
  add("from", po::value<std::vector<std::string>>()->multitoken()->composing()->required());
  for (char const* const name : {"to", "tokenizer", "format"}) {
    add(name, text()->required());
  }
  add("documents", text()->default_value("auto"));
  add("field", text());
  add("template", text());
  add("longest", text()->default_value("0"));
  add("end-token", text()->default_value("auto"));
  add("add-special-tokens", text()->default_value("no"));
  add("threads", text());
  add("progress", text()->default_value("10"));
  return parse_command_options(arguments, options, "data pack");
}

bool holds_json_lines(std::string_view path) {
  for (std::string_view const packed : {".gz", ".zst"}) {
    if (path.ends_with(packed)) {
      path.remove_suffix(packed.size());
    }
  }
  return path.ends_with(".jsonl");
}

std::vector<pack::Text> texts_of(GivenOptions const& given) {
  using data::Documents;
  auto const kind = choice<std::optional<Documents>>(given, "documents",
                                                     {{"auto", std::nullopt},
                                                      {"file", Documents::file},
                                                      {"line", Documents::line},
                                                      {"blank", Documents::blank},
                                                      {"jsonl", Documents::json}});
  std::vector<pack::Text> texts;
  for (std::string const& name : given["from"].as<std::vector<std::string>>()) {
    for (std::string& path : pack::expand(name, "--from")) {
      auto const by_name = holds_json_lines(path) ? Documents::json : Documents::file;
      texts.push_back({std::move(path), kind.value_or(by_name)});
    }
  }
  return texts;
}

/// Warns (log) of files that become tokens though they are no text. Errors: IoError for one that cannot be opened.
void warn_of_lookalikes(std::vector<pack::Text> const& texts) {
  for (pack::Text const& text : texts) {
    data::InputFile const file{text.path, "--from"};
    auto const found = data::find_lookalike(file);
    if (found && !found->is_unpacked && text.documents != data::Documents::json) {
      log::warning("{}: looks like {}, which becomes tokens as it stands; {}", file.name(),
                   found->name, found->advice);
    }
  }
}

/// Conversations are JSON lines, and all that a template says of their text is in it.
void check_template_options(GivenOptions const& given, std::vector<pack::Text> const& texts) {
  if (!given.contains("template")) {
    if (given["longest"].as<std::string>() != "0") {
      throw UsageError{"--longest is about conversations; give --template with it"};
    }
    return;
  }
  for (pack::Text const& text : texts) {
    if (text.documents != data::Documents::json) {
      throw UsageError{fmt::format(
          "--from={}: --template takes JSON lines; name it .jsonl or add --documents=jsonl",
          text.path)};
    }
  }
  for (char const* const option : {"end-token", "add-special-tokens"}) {
    if (!given[option].defaulted()) {
      throw UsageError{fmt::format(
          "--{} has no effect with --template, which says where {{bos}} and {{eos}} stand",
          option)};
    }
  }
}

void warn_of_conversations(pack::Conversations const& all, std::int64_t longest) {
  if (all.without > 0) {
    log::warning("conversations left out, as nothing of them counts in the loss: {}; the first: {}",
                 all.without, all.first_without);
  }
  if (all.too_long > 0) {
    log::warning("conversations left out, as they have more than {} tokens (--longest): {}",
                 longest, all.too_long);
  }
  if (all.straddling > 0) {
    log::warning(
        "{{learn}} or {{/learn}} lies inside of a token, which counts then, {} times; a prompt "
        "that "
        "ends there has other tokens: put a special token or a line's end there",
        all.straddling);
  }
}

std::optional<std::int32_t> end_of(GivenOptions const& given, data::Tokenizer const& tokenizer) {
  auto const& name = given["end-token"].as<std::string>();
  if (name == "none") {
    return std::nullopt;
  }
  if (name == "auto") {
    return tokenizer.end_of_document();
  }
  auto const token = tokenizer.token(name);
  if (!token) {
    throw UsageError{fmt::format(
        "--end-token={} is no token of --tokenizer={}; give a token's text, auto or none",
        printable_name(name), given["tokenizer"].as<std::string>())};
  }
  return token;
}

std::string prefix_of(GivenOptions const& given) {
  auto const& prefix = given["to"].as<std::string>();
  if (prefix.ends_with(".bin") || prefix.ends_with(".idx") || prefix.ends_with('/') ||
      prefix.empty()) {
    throw UsageError{fmt::format("--to={} is no prefix; .bin and .idx are added to it", prefix)};
  }
  return prefix;
}

std::int64_t whole(GivenOptions const& given, char const* option, std::int64_t least,
                   std::int64_t most) {
  return number(option, given[option].as<std::string>(), least, most);
}

/// Says how far it is, not more often than asked for.
class Teller {
 public:
  explicit Teller(Seconds every) : every_{every} {}

  void tell(pack::Progress const& progress, std::int64_t tokens) {
    if (every_.count() == 0.0 || last_.elapsed() < every_ || progress.read == 0) {
      return;
    }
    static_cast<void>(last_.lap());
    double const seconds = since_.elapsed().count();
    double const share = static_cast<double>(progress.read) / static_cast<double>(progress.total);
    log::info("{:.1f} % of {}: {} tokens, {:.1f} MB of text per second, {:.0f} s left",
              100.0 * share, format_bytes(progress.total), tokens,
              static_cast<double>(progress.text) / seconds / 1e6, seconds * (1.0 / share - 1.0));
  }

 private:
  Seconds every_;
  Stopwatch since_;
  Stopwatch last_;
};

}  // namespace

ExitCode pack_command(Arguments const& arguments) {
  if (arguments.empty() || asks_for_help(arguments)) {
    log::write_lines(usage_text);
    return arguments.empty() ? ExitCode::usage : ExitCode::done;
  }
  auto const given = parse(arguments);
  auto const format = choice<data::Format>(given, "format",
                                           {{"megatron", data::Format::megatron},
                                            {"llmc", data::Format::llmc},
                                            {"nanogpt", data::Format::nanogpt}});
  bool const framed = choice<bool>(given, "add-special-tokens", {{"yes", true}, {"no", false}});
  auto const prefix = prefix_of(given);
  pack::Task task;
  task.texts = texts_of(given);
  warn_of_lookalikes(task.texts);
  check_template_options(given, task.texts);
  bool const has_template = given.contains("template");
  task.field = given.contains("field") ? given["field"].as<std::string>()
                                       : (has_template ? "messages" : "text");
  task.longest = whole(given, "longest", 0, 1'000'000'000);
  task.threads = given.contains("threads")
                     ? static_cast<int>(whole(given, "threads", 1, 1024))
                     : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  Teller teller{Seconds{static_cast<double>(whole(given, "progress", 0, 1'000'000))}};
  auto const tokenizer =
      tokens::open_tokenizer(given["tokenizer"].as<std::string>(), "--tokenizer");
  task.end = end_of(given, *tokenizer);
  task.frame = framed ? tokenizer->frame() : data::Frame{};

  std::optional<pack::Template> form;
  if (has_template) {
    form = pack::read_template(given["template"].as<std::string>(), "--template", *tokenizer);
    task.form = &*form;
  }

  data::TokenWriter writer{prefix, format, tokenizer->vocab(), has_template};
  auto const done = pack::pack(task, *tokenizer, writer, [&](pack::Progress const& progress) {
    teller.tell(progress, writer.tokens());
  });
  warn_of_conversations(done.conversations, task.longest);
  writer.commit();
  if (has_template) {
    log::info("{}.bin: {} tokens of type {} in {} conversations; {}.mask: {:.1f} % of them count",
              prefix, writer.tokens(), name_of(writer.type()), writer.documents(), prefix,
              100.0 * static_cast<double>(done.conversations.counted) /
                  static_cast<double>(writer.tokens()));
    return ExitCode::done;
  }
  log::info("{}.bin: {} tokens of type {} in {} documents from {} bytes, {:.2f} bytes a token{}",
            prefix, writer.tokens(), name_of(writer.type()), writer.documents(), done.text,
            static_cast<double>(done.text) / static_cast<double>(writer.tokens()),
            task.end ? fmt::format("; token {} ends documents", *task.end) : std::string{});
  return ExitCode::done;
}

}  // namespace offstage::cli
