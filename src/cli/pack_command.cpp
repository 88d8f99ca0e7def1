#include "cli/pack_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/regular_file.hpp"
#include "base/stopwatch.hpp"
#include "base/team.hpp"
#include "base/units.hpp"
#include "base/version.hpp"
#include "cli/command_options.hpp"
#include "cli/commit.hpp"
#include "cli/pack_checks.hpp"
#include "data/globs.hpp"
#include "data/input_file.hpp"
#include "data/loss_mask.hpp"
#include "data/token_writer.hpp"
#include "data/tokenizer_note.hpp"
#include "pack/packer.hpp"
#include "pack/progress_file.hpp"
#include "pack/template.hpp"
#include "tokens/open_tokenizer.hpp"
#include "train/saves/signals.hpp"

namespace offstage::cli {
namespace {

namespace po = boost::program_options;

constexpr char const* pack_usage =
    R"(Usage: offstage data pack --from TEXT... --to PREFIX --tokenizer=NAME [--option ...]

Turns text into tokens: PREFIX.bin and, for megatron, PREFIX.idx. With --template it packs
conversations, and PREFIX.mask says which of their tokens count in the loss. PREFIX.tokenizer says
which tokenizer made them. No tokens are overwritten, and files get their names when they are
whole. If a pack was killed or failed, the same command continues it from PREFIX.pack.part. To
begin anew, remove the .part files.
  --from TEXT...        text, or JSON lines if the name ends in .jsonl or .ndjson, each also as
                        .gz or .zst, or a Parquet table if it ends in .parquet, whose rows are
                        taken as JSON lines; '*', '?' and [abc] stand for several files
  --to PREFIX           first part of the names of the files to write
  --tokenizer NAME      bytes, a tokenizer.json, a SentencePiece FILE.model, or a directory with a
                        tokenizer.json or a tokenizer.model
  --format F            megatron, llmc or nanogpt [megatron]
  --documents KIND      extent of a document: the whole file (file), a line (line), the lines
                        between blank lines (blank), or a field of a line's JSON object (jsonl)
                        [jsonl for .jsonl, .ndjson and .parquet, else file]
  --field NAME          field of JSON lines, or column, with the text [text], or with an array of
                        messages [messages]
  --template FILE       packs conversations: messages with role and content (or conversations with
                        from and value), or fields whose names are roles of the template (prompt,
                        completion). FILE says how roles become text and which of them the model
                        learns; a message with weight 0 is not learned; see configs/templates
  --longest N           most tokens of a conversation; longer ones are left out and counted;
                        0: no limit [0]
  --end-token TOKEN     text of the token that ends every document, '</s>' say; auto: the
                        tokenizer's own; none, or a tokenizer without one: the line's end stays,
                        which for llmc and nanogpt must be said by none, but of bytes [auto]
  --add-special-tokens yes|no  adds the tokens that the tokenizer puts around a text [no]
  --skip-bad N          most lines to leave out that are no JSON or lack the field; the same command
                        with a larger N goes on from the last save [0]
  --threads N           threads that encode [the cores that this process may use]
  --progress SECONDS    time between lines of progress; 0: no lines [10]
  --save SECONDS        time between places from which the same command continues [30]

  offstage data pack --from 'web/*.jsonl.zst' --to web --tokenizer=llama/tokenizer.json
  offstage data pack --from chats.jsonl --to chats --tokenizer=qwen --template=chatml.txt
  offstage data pack --from log.txt --to log --tokenizer=bytes --format=nanogpt --documents=line)";

GivenOptions parse_pack(Arguments const& arguments) {
  po::options_description options;
  auto add = options.add_options();
  auto const text = [] { return po::value<std::string>(); };
  add("from", po::value<std::vector<std::string>>()->multitoken()->composing()->required());
  for (char const* const name : {"to", "tokenizer"}) {
    add(name, text()->required());
  }
  add("format", text()->default_value("megatron"));
  add("documents", text()->default_value("auto"));
  add("field", text());
  add("template", text());
  add("longest", text()->default_value("0"));
  add("end-token", text()->default_value("auto"));
  add("add-special-tokens", text()->default_value("no"));
  add("skip-bad", text()->default_value("0"));
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
  return path.ends_with(".jsonl") || path.ends_with(".ndjson") || path.ends_with(".parquet");
}

std::vector<pack::Text> texts_of(GivenOptions const& given) {
  using data::Documents;
  auto const kind = choice<std::optional<Documents>>("documents", text_of(given, "documents"),
                                                     {{"auto", std::nullopt},
                                                      {"file", Documents::file},
                                                      {"line", Documents::line},
                                                      {"blank", Documents::blank},
                                                      {"jsonl", Documents::json}});
  std::vector<pack::Text> texts;
  std::vector<std::string> empty;
  for (std::string const& name : given["from"].as<std::vector<std::string>>()) {
    for (std::string& path : data::expand(name, "--from")) {
      if (path != name && is_empty_file(path)) {
        empty.push_back(std::move(path));
        continue;
      }
      auto const by_name = holds_json_lines(path) ? Documents::json : Documents::file;
      texts.push_back({std::move(path), kind.value_or(by_name)});
    }
  }
  if (texts.empty()) {
    throw DataError{"--from: all files that its patterns match are empty"};
  }
  if (!empty.empty()) {
    log::warning("{} of the files that patterns of --from match {} empty and left out: {}{}",
                 empty.size(), empty.size() == 1 ? "is" : "are", printable_name(empty.front()),
                 empty.size() == 1 ? "" : " is the first");
  }
  return texts;
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
  pack::Request request{{"offstage", fmt::format("{}, commit {}", version(), commit())}};
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

void tell_where_to_go_on(pack::ProgressFile const& file) {
  if (file.saved()) {
    log::info("{}: the same command goes on behind {} tokens", file.path(),
              file.saved()->written.tokens);
  }
}

/// Goes on from the place that `file` has saved until the token files lack only their names, and
/// saves that. A signal saves the place and ends the process (75).
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
  train::StopSignals const signals;
  auto const save = [&](pack::Progress const& progress) {
    file.save({progress, writer.save()});
    writer.keep();
    static_cast<void>(since_save.lap());
  };
  auto const end_at_signal = [&](pack::Progress const& progress) {
    if (int const signal = signals.received(); signal != 0) {
      save(progress);
      log::info("stopped by signal {}", signal);
      tell_where_to_go_on(file);
      // Other threads may be in the middle of a document of gigabytes, which nothing ends sooner.
      std::fflush(nullptr);
      std::_Exit(static_cast<int>(ExitCode::more));
    }
  };
  auto const done = pack::pack(
      task, tokenizer, writer, begin,
      [&](pack::Progress const& progress) {
        teller.tell(progress, writer.tokens());
        end_at_signal(progress);
        if (since_save.elapsed() >= every.save) {
          save(progress);
        }
      },
      end_at_signal);
  warn_of_conversations(done.conversations, task.longest);
  warn_of_bad(done.bad);
  warn_of_replaced(done.replaced);
  warn_of_specials(done.specials);
  writer.finish();
  file.save({done, {writer.tokens(), writer.documents()}, true});
  writer.keep();
}

/// Logs the token files that are there: `progress` and `written` at their end.
void say_what_is_there(pack::Task const& task, Output const& output, std::int64_t vocab,
                       pack::Progress const& progress, data::Written const& written) {
  auto const tokens =
      fmt::format("{}.bin: {} tokens of type {} in {}", output.prefix, written.tokens,
                  name_of(data::token_type_for(output.format, vocab)), written.documents);
  if (task.form != nullptr) {
    log::info("{} conversations; {}.mask: {:.1f} % of them count", tokens, output.prefix,
              100.0 * static_cast<double>(progress.conversations.counted) /
                  static_cast<double>(written.tokens));
    return;
  }
  log::info("{} documents from {} bytes of text, {:.2f} bytes a token{}", tokens, progress.encoded,
            static_cast<double>(progress.encoded) / static_cast<double>(written.tokens),
            task.end ? fmt::format("; token {} ends documents", *task.end) : std::string{});
}

/// The task as options give it, without tokenizer and template.
pack::Task task_of(GivenOptions const& given) {
  pack::Task task;
  task.texts = texts_of(given);
  look_for_lookalikes(task.texts, given["documents"].as<std::string>() != "auto");
  check_template_options(given, task.texts);
  task.field = given.contains("field") ? given["field"].as<std::string>()
                                       : (given.contains("template") ? "messages" : "text");
  task.longest = whole(given, "longest", 0, 1'000'000'000);
  task.most_bad = whole(given, "skip-bad", 0, std::numeric_limits<std::int64_t>::max());
  task.threads =
      given.contains("threads") ? static_cast<int>(whole(given, "threads", 1, 1024)) : team_size();
  return task;
}

/// Names the files that are whole, and writes beside them what a run has to know of their tokens.
void complete_files(GivenOptions const& given, data::Tokenizer const& tokenizer,
                    Output const& output) {
  bool const has_template = given.contains("template");
  data::name_token_files(output.prefix, output.format, has_template);
  std::optional<data::TokenizerNote> note;
  if (auto const sample = data::sample_of(tokenizer)) {
    note = {.name = given["tokenizer"].as<std::string>(),
            .sample = *sample,
            .vocab = tokenizer.vocab(),
            .is_masked = has_template};
  }
  data::write_note(output.prefix, note);
}

}  // namespace

ExitCode pack_command(Arguments const& arguments) {
  if (arguments.empty() || asks_for_help(arguments)) {
    log::write_lines(pack_usage);
    return arguments.empty() ? ExitCode::usage : ExitCode::done;
  }
  auto const given = parse_pack(arguments);
  bool const framed = choice<bool>("add-special-tokens", text_of(given, "add-special-tokens"),
                                   {{"yes", true}, {"no", false}});
  Output const output{prefix_of(given), choice<data::Format>("format", text_of(given, "format"),
                                                             {{"megatron", data::Format::megatron},
                                                              {"llmc", data::Format::llmc},
                                                              {"nanogpt", data::Format::nanogpt}})};
  auto task = task_of(given);
  auto const seconds = [&](char const* option) {
    return Seconds{static_cast<double>(whole(given, option, 0, 1'000'000))};
  };
  Every const every{seconds("progress"), seconds("save")};
  auto const tokenizer =
      tokens::open_tokenizer(given["tokenizer"].as<std::string>(), "--tokenizer");
  task.end = end_of(given, *tokenizer);
  task.frame = framed ? tokenizer->frame() : data::Frame{};

  std::optional<pack::Template> form;
  if (given.contains("template")) {
    form = pack::read_template(given["template"].as<std::string>(), "--template", *tokenizer);
    task.form = &*form;
    check_conversation_ends(*form, *tokenizer, output.format);
    warn_of_template(*form, *tokenizer, given["template"].as<std::string>());
    tell_of_chat_template(given["tokenizer"].as<std::string>());
  }

  data::refuse_other_than_note(output.prefix);
  pack::ProgressFile file{output.prefix, request_of(given, task.end), task.texts};
  if (framed && task.frame.before.empty() && task.frame.behind.empty()) {
    throw UsageError{fmt::format(
        "--add-special-tokens=yes: --tokenizer={} puts no tokens around a text; leave it out",
        given["tokenizer"].as<std::string>())};
  }
  tell_of_begin(task, *tokenizer);
  if (given["end-token"].as<std::string>() == "auto") {
    check_ends(task, *tokenizer, given["tokenizer"].as<std::string>(), output.format);
  }
  try {
    if (!file.saved() || !file.saved()->is_whole) {
      write_tokens(task, *tokenizer, output, every, file);
    }
    complete_files(given, *tokenizer, output);
  } catch (...) {
    tell_where_to_go_on(file);
    throw;
  }
  auto const [done, written, is_whole] = *file.saved();
  file.remove();
  say_what_is_there(task, output, tokenizer->vocab(), done, written);
  return ExitCode::done;
}

}  // namespace offstage::cli
