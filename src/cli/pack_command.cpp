#include "cli/pack_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/stopwatch.hpp"
#include "base/units.hpp"
#include "base/version.hpp"
#include "cli/command_options.hpp"
#include "data/input_file.hpp"
#include "data/lookalikes.hpp"
#include "data/loss_mask.hpp"
#include "data/token_writer.hpp"
#include "pack/globs.hpp"
#include "pack/packer.hpp"
#include "pack/progress_file.hpp"
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
    "are whole. After a pack that was killed or failed, the same command goes on where it was; "
    "PREFIX.pack.part\n"
    "says where, and removing the .part files begins anew.\n"
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
    "  --save SECONDS        between places from which the same command goes on [30]\n"
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
  add("save", text()->default_value("30"));
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

/// Logs a warning for files that become tokens although they are no text. Errors: IoError for one
/// that cannot be opened.
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

/// Checks the options that a template excludes. Conversations are JSON lines, and the template
/// alone says what their text is.
void check_template_options(GivenOptions const& given, std::vector<pack::Text> const& texts) {
  if (!given.contains("template")) {
    if (given["longest"].as<std::string>() != "0") {
      throw UsageError{"--longest applies to conversations; give --template with it"};
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

/// Logs progress, not more often than asked for.
class Teller {
 public:
  Teller(Seconds every, pack::Progress const& begin) : every_{every}, begin_{begin} {}

  void tell(pack::Progress const& progress, std::int64_t tokens) {
    if (every_.count() == 0.0 || last_.elapsed() < every_ || progress.read == begin_.read) {
      return;
    }
    static_cast<void>(last_.lap());
    double const seconds = since_.elapsed().count();
    auto const total = static_cast<double>(progress.total);
    auto const left = static_cast<double>(progress.total - progress.read);
    log::info("{:.1f} % of {}: {} tokens, {:.1f} MB of text per second, {:.0f} s left",
              100.0 * static_cast<double>(progress.read) / total, format_bytes(progress.total),
              tokens, static_cast<double>(progress.text - begin_.text) / seconds / 1e6,
              seconds * left / static_cast<double>(progress.read - begin_.read));
  }

 private:
  Seconds every_;
  pack::Progress begin_;
  Stopwatch since_;
  Stopwatch last_;
};

/// The checksum of a file's contents.
std::string contents_of(std::string const& path, char const* key) {
  data::InputFile const file{path, key};
  data::RunningChecksum checksum;
  std::vector<std::byte> buffer(static_cast<std::size_t>(MiB));
  for (Bytes done = 0; done < file.size(); done += std::ssize(buffer)) {
    buffer.resize(static_cast<std::size_t>(std::min(MiB, file.size() - done)));
    file.read(done, buffer);
    checksum.add(buffer);
  }
  return fmt::format("with contents {:016x}", checksum.value());
}

/// The options on which tokens depend, beside the texts.
pack::Request request_of(GivenOptions const& given, std::optional<std::int32_t> end) {
  pack::Request request{{"offstage", version()}};
  for (char const* const name : {"format", "documents", "longest", "add-special-tokens"}) {
    request.emplace_back(fmt::format("--{}", name), given[name].as<std::string>());
  }
  request.emplace_back("--end-token", end ? fmt::format("token {}", *end) : "none");
  request.emplace_back("--field",
                       given.contains("field") ? given["field"].as<std::string>() : "left out");
  auto const tokenizer = tokens::tokenizer_file(given["tokenizer"].as<std::string>());
  request.emplace_back("--tokenizer", tokenizer ? contents_of(*tokenizer, "--tokenizer") : "bytes");
  request.emplace_back("--template",
                       given.contains("template")
                           ? contents_of(given["template"].as<std::string>(), "--template")
                           : "left out");
  return request;
}

struct Output {
  std::string prefix;
  data::Format format;
};

/// Seconds between log lines, and between saves.
struct Every {
  Seconds progress;
  Seconds save;
};

/// Goes on from the place that `file` has saved until the token files lack only their names, and
/// saves that.
void write_tokens(pack::Task const& task, data::Tokenizer const& tokenizer, Output const& output,
                  Every const& every, pack::ProgressFile& file) {
  pack::Progress begin;
  if (file.saved()) {
    begin = file.saved()->progress;
    log::info("{}: an earlier pack reached {} tokens in {} documents; this one goes on there",
              file.path(), file.saved()->written.tokens, file.saved()->written.documents);
  }
  data::TokenWriter writer{output.prefix, output.format, tokenizer.vocab(), task.form != nullptr,
                           file.begun()};
  Teller teller{every.progress, begin};
  Stopwatch since_save;
  auto const done = pack::pack(task, tokenizer, writer, begin, [&](pack::Progress const& progress) {
    teller.tell(progress, writer.tokens());
    if (since_save.elapsed() >= every.save) {
      file.save({progress, writer.save()});
      writer.keep();
      static_cast<void>(since_save.lap());
    }
  });
  warn_of_conversations(done.conversations, task.longest);
  writer.finish();
  file.save({done, {writer.tokens(), writer.documents()}, true});
  writer.keep();
}

}  // namespace

ExitCode pack_command(Arguments const& arguments) {
  if (arguments.empty() || asks_for_help(arguments)) {
    log::write_lines(usage_text);
    return arguments.empty() ? ExitCode::usage : ExitCode::done;
  }
  auto const given = parse(arguments);
  bool const framed = choice<bool>(given, "add-special-tokens", {{"yes", true}, {"no", false}});
  Output const output{prefix_of(given), choice<data::Format>(given, "format",
                                                             {{"megatron", data::Format::megatron},
                                                              {"llmc", data::Format::llmc},
                                                              {"nanogpt", data::Format::nanogpt}})};
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
  auto const seconds = [&](char const* option) {
    return Seconds{static_cast<double>(whole(given, option, 0, 1'000'000))};
  };
  Every const every{seconds("progress"), seconds("save")};
  auto const tokenizer =
      tokens::open_tokenizer(given["tokenizer"].as<std::string>(), "--tokenizer");
  task.end = end_of(given, *tokenizer);
  task.frame = framed ? tokenizer->frame() : data::Frame{};

  std::optional<pack::Template> form;
  if (has_template) {
    form = pack::read_template(given["template"].as<std::string>(), "--template", *tokenizer);
    task.form = &*form;
  }

  pack::ProgressFile file{output.prefix, request_of(given, task.end), task.texts};
  try {
    if (!file.saved() || !file.saved()->is_whole) {
      write_tokens(task, *tokenizer, output, every, file);
    }
    data::name_token_files(output.prefix, output.format, has_template);
  } catch (...) {
    if (file.saved()) {
      log::info("{}: the same command goes on behind {} tokens", file.path(),
                file.saved()->written.tokens);
    }
    throw;
  }
  auto const [done, written, is_whole] = *file.saved();
  file.remove();
  auto const tokens = fmt::format(
      "{}.bin: {} tokens of type {} in {}", output.prefix, written.tokens,
      name_of(data::token_type_for(output.format, tokenizer->vocab())), written.documents);
  if (has_template) {
    log::info("{} conversations; {}.mask: {:.1f} % of them count", tokens, output.prefix,
              100.0 * static_cast<double>(done.conversations.counted) /
                  static_cast<double>(written.tokens));
    return ExitCode::done;
  }
  log::info("{} documents from {} bytes, {:.2f} bytes a token{}", tokens, done.text,
            static_cast<double>(done.text) / static_cast<double>(written.tokens),
            task.end ? fmt::format("; token {} ends documents", *task.end) : std::string{});
  return ExitCode::done;
}

}  // namespace offstage::cli
