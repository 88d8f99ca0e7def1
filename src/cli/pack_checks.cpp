#include "cli/pack_checks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <set>
#include <span>
#include <string_view>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/regular_file.hpp"
#include "base/units.hpp"
#include "data/byte_stream.hpp"
#include "data/input_file.hpp"
#include "data/lookalikes.hpp"
#include "parquet/rows.hpp"
#include "tokens/open_tokenizer.hpp"

namespace offstage::cli {
namespace {

/// True if tokens of several documents are one behind the other, and no token is between them.
bool glues_documents(pack::Task const& task, data::Tokenizer const& tokenizer) {
  if (task.end || task.form != nullptr || !task.frame.before.empty() ||
      !task.frame.behind.empty()) {
    return false;
  }
  // A line's end is a byte, and stays.
  if (tokenizer.takes_bytes()) {
    return std::ranges::any_of(
        task.texts, [](pack::Text const& t) { return t.documents == data::Documents::json; });
  }
  return task.texts.size() > 1 || task.texts.front().documents != data::Documents::file;
}

/// The names with their counts: "history 1, tools 1".
std::string describe_unused(pack::Conversations const& all) {
  constexpr std::size_t most = 20;
  std::vector<std::string> names;
  for (auto const& [name, count] : all.unused) {
    if (names.size() == most) {
      names.push_back(fmt::format("and {} others", all.unused.size() - most));
      break;
    }
    names.push_back(fmt::format("{} {}", printable_name(name), count));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Returns whether the first text, or a text in its first lines of JSON, begins with `name`.
bool begins_with(pack::Task const& task, std::string const& name) {
  constexpr std::size_t enough = 64 * KiB;
  pack::Text const& first = task.texts.front();
  std::string text(enough, '\0');
  text.resize(pack::open_text(task, first)->read(std::as_writable_bytes(std::span{text})));
  if (first.documents != data::Documents::json) {
    return text.starts_with(name);
  }
  auto const begin = fmt::format("\"{}", name);
  auto at = text.find(begin);
  while (at != std::string::npos && at > 0 && text[at - 1] == '\\') {  // a quote inside of a text
    at = text.find(begin, at + 1);
  }
  return at != std::string::npos;
}

/// The tokens that the line names, in braces or by their texts.
std::set<std::int32_t> tokens_named_in(pack::TemplateLine const& line,
                                       data::Tokenizer const& tokenizer) {
  std::set<std::int32_t> tokens;
  for (pack::TemplatePart const& part : line) {
    if (part.kind == pack::TemplatePart::Kind::token) {
      tokens.insert(part.token);
    }
    for (std::int32_t const token : tokenizer.encode(part.text)) {
      if (auto const name = tokenizer.name_of(token);
          name.size() > 2 && part.text.find(name) != std::string::npos) {
        tokens.insert(token);
      }
    }
  }
  return tokens;
}

/// Whether the token is in what the line lets a model learn.
bool learns_token(pack::TemplateLine const& line, std::int32_t token,
                  data::Tokenizer const& tokenizer) {
  using Kind = pack::TemplatePart::Kind;
  pack::TemplateLine learned;
  bool learns = false;
  for (pack::TemplatePart const& part : line) {
    learns = part.kind == Kind::learn || (learns && part.kind != Kind::ignore);
    if (learns) {
      learned.push_back(part);
    }
  }
  return tokens_named_in(learned, tokenizer).contains(token);
}

/// Parts of a text that look like special tokens: "<|im_start|>".
std::vector<std::string> marks_in(std::string_view text) {
  std::vector<std::string> marks;
  for (auto begin = text.find("<|"); begin != std::string_view::npos;
       begin = text.find("<|", begin + 2)) {
    auto const end = text.find("|>", begin);
    if (end != std::string_view::npos) {
      marks.emplace_back(text.substr(begin, end + 2 - begin));
    }
  }
  return marks;
}

}  // namespace

void look_for_lookalikes(std::vector<pack::Text> const& texts, bool kind_is_given) {
  using Kind = data::Lookalike::Kind;
  for (pack::Text const& text : texts) {
    bool const is_lines = text.documents == data::Documents::json;
    bool const is_table = parquet::is_table(text.path, "--from");
    if (is_lines && is_table) {
      continue;
    }
    auto const stream = data::open_stream(text.path, "--from");
    if (is_table && kind_is_given) {
      stream->file().fail("is a Parquet table, whose rows are documents; give --documents=jsonl");
    }
    std::string first(data::lookalike_bytes, '\0');
    first.resize(stream->read(std::as_writable_bytes(std::span{first})));
    auto const found = data::find_text_lookalike(first);
    if (!found || (found->kind == Kind::json && is_lines)) {
      continue;
    }
    if (found->kind != Kind::other && kind_is_given && !is_lines) {
      log::warning("{}: looks like {}, which becomes tokens as it stands; {}",
                   stream->file().name(), found->name, found->advice);
    } else {
      stream->file().fail(
          fmt::format("looks like {}, {}; {}", found->name,
                      is_lines ? "but its name says JSON lines"
                               : "which is neither text of UTF-8 nor named as JSON lines",
                      found->advice));
    }
  }
}

void tell_of_begin(pack::Task const& task, data::Tokenizer const& tokenizer) {
  auto const before = tokenizer.frame().before;
  if (before.empty()) {
    return;
  }
  auto const name = tokenizer.name_of(before.front());
  bool const is_in_texts = !name.empty() && begins_with(task, name);
  bool const has_template = task.form != nullptr;
  auto const has_it = [&](pack::TemplateLine const& line) {
    return std::ranges::any_of(line, [&](pack::TemplatePart const& part) {
      return (part.kind == pack::TemplatePart::Kind::token && part.token == before.front()) ||
             part.text.find(name) != std::string::npos;
    });
  };
  // Llama 2's has it in front of each user's line.
  bool const begins =
      has_template && (has_it(task.form->begin) ||
                       std::ranges::any_of(task.form->roles, has_it, &pack::Template::Role::line));
  if (is_in_texts && (begins || !task.frame.before.empty())) {
    log::warning(
        "--from={}: has texts that begin with '{}', and the pack puts another one before each; "
        "leave out {}",
        task.texts.front().path, printable_name(name),
        has_template ? "the one in the template" : "--add-special-tokens=yes");
  } else if (!is_in_texts && !begins && task.frame.before.empty()) {
    log::info("texts begin without '{}', which the tokenizer puts before texts elsewhere; {}",
              printable_name(name),
              has_template ? "{bos} in the template's begin adds it"
                           : "--add-special-tokens=yes adds it");
  }
}

void warn_of_template(pack::Template const& form, data::Tokenizer const& tokenizer,
                      std::string const& name) {
  for (pack::Template::Role const& role : form.roles) {
    if (role.is_learned && form.eos && !learns_token(role.line, *form.eos, tokenizer)) {
      log::warning(
          "--template={}: what is learned of '{}' does not end with '{}', so that a model does not "
          "learn to end its answers; put {{eos}} before {{/learn}}",
          name, printable_name(role.name), printable_name(tokenizer.name_of(*form.eos)));
    }
    for (pack::TemplatePart const& part : role.line) {
      for (std::string const& text : marks_in(part.text)) {
        if (!tokenizer.token(text)) {
          log::warning("--template={}: '{}' of '{}' is no token of the tokenizer, and becomes some",
                       name, printable_name(text), printable_name(role.name));
        }
      }
    }
  }
}

void tell_of_chat_template(std::string const& name) {
  auto const tokenizer = tokens::tokenizer_file(name);
  if (!tokenizer) {
    return;
  }
  auto const directory = std::filesystem::path{*tokenizer}.parent_path();
  auto const config = (directory / "tokenizer_config.json").string();
  bool const is_inside =
      is_there(config) &&
      data::read_whole(data::InputFile{config, "--tokenizer"}, 256 * MiB, "is too large")
              .find("\"chat_template\"") != std::string::npos;
  if (is_inside || is_there((directory / "chat_template.jinja").string())) {
    log::info(
        "--tokenizer={}: has a chat template of its own, which is not used here; where the model "
        "will be asked by that one, --template must make the same texts",
        name);
  }
}

void check_conversation_ends(pack::Template const& form, data::Tokenizer const& tokenizer,
                             data::Format format) {
  // The last role's line may end with it, where rows have a field for each role.
  auto last = form.roles.back().line;
  while (!last.empty() && last.back().kind == pack::TemplatePart::Kind::ignore) {
    last.pop_back();
  }
  auto ends = tokens_named_in(form.end, tokenizer);
  if (!last.empty()) {
    ends.merge(tokens_named_in({last.back()}, tokenizer));
    last.pop_back();
  }
  auto others = tokens_named_in(form.begin, tokenizer);
  others.merge(tokens_named_in(form.no_system, tokenizer));
  others.merge(tokens_named_in(last, tokenizer));
  for (std::size_t i = 0; i + 1 < form.roles.size(); ++i) {
    others.merge(tokens_named_in(form.roles[i].line, tokenizer));
  }
  bool const any =
      std::ranges::any_of(ends, [&](std::int32_t token) { return !others.contains(token); });
  if (!any && format != data::Format::megatron) {
    throw UsageError{fmt::format(
        "--format={} does not store where conversations end, and the template has no token that "
        "ends them alone; leave --format out, or add end = \"TOKEN\" to the template",
        name_of(format))};
  }
}

void check_ends(pack::Task const& task, data::Tokenizer const& tokenizer, std::string const& name,
                data::Format format) {
  if (!glues_documents(task, tokenizer)) {
    return;
  }
  auto const problem =
      fmt::format("--tokenizer={} names no token that ends a document", printable_name(name));
  if (format == data::Format::megatron) {
    log::warning(
        "{}, so a model never sees the end of one; --end-token=TOKEN names one, --end-token=none "
        "leaves this line out",
        problem);
    return;
  }
  throw UsageError{
      fmt::format("{}, and {} does not store where documents end; add --end-token=TOKEN, or "
                  "--end-token=none if they shall follow each other without one",
                  problem, name_of(format))};
}

void warn_of_conversations(pack::Conversations const& all, std::int64_t longest) {
  if (all.without.count > 0) {
    log::warning("conversations left out, as nothing of them counts in the loss: {}; the first: {}",
                 all.without.count, all.without.first);
  }
  if (all.too_long > 0) {
    log::warning("conversations left out, as they have more than {} tokens (--longest): {}",
                 longest, all.too_long);
  }
  if (all.straddling > 0) {
    log::warning(
        "{{learn}} or {{/learn}} lies inside of a token, which counts then, {} times; a prompt "
        "that ends there has other tokens: put a special token or a line's end there",
        all.straddling);
  }
  if (!all.unused.empty()) {
    log::warning("fields that the template does not use: {}", describe_unused(all));
  }
}

void warn_of_bad(pack::Noticed const& bad) {
  if (bad.count > 0) {
    log::warning("bad lines left out (--skip-bad): {}; the first: {}", bad.count, bad.first);
  }
}

void warn_of_replaced(pack::Noticed const& replaced) {
  if (replaced.count > 0) {
    log::warning(
        "bytes that are no UTF-8, in whose place are tokens of U+FFFD: {}; the first: {}; convert "
        "the text if it is of another encoding: iconv -f LATIN1 -t UTF-8 FILE > NEW",
        replaced.count, replaced.first);
  }
}

void warn_of_specials(pack::Noticed const& specials) {
  if (specials.count > 0) {
    log::warning(
        "special tokens that the texts themselves hold: {}; the first: {}; a model takes them for "
        "ends of documents or turns; if they are not meant so, change them in the texts",
        specials.count, printable_name(specials.first));
  }
}

}  // namespace offstage::cli
