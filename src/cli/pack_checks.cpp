#include "cli/pack_checks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/printable.hpp"
#include "data/byte_stream.hpp"
#include "data/lookalikes.hpp"
#include "parquet/rows.hpp"

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

/// The names with their counts: "history 1, system 1".
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

}  // namespace

void look_for_lookalikes(std::vector<pack::Text> const& texts, bool kind_is_given) {
  using Kind = data::Lookalike::Kind;
  for (pack::Text const& text : texts) {
    bool const is_lines = text.documents == data::Documents::json;
    if (is_lines && parquet::is_table(text.path, "--from")) {
      continue;
    }
    auto const stream = data::open_stream(text.path, "--from");
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
          fmt::format("looks like {}, which is neither text of UTF-8 nor named as JSON lines; {}",
                      found->name, found->advice));
    }
  }
}

void tell_of_begin(pack::Task const& task, data::Tokenizer const& tokenizer) {
  auto const before = tokenizer.frame().before;
  if (before.empty() || !task.frame.before.empty()) {
    return;
  }
  auto const name = tokenizer.name_of(before.front());
  bool const has_template = task.form != nullptr;
  bool const begins =
      has_template && std::ranges::any_of(task.form->begin, [&](pack::TemplatePart const& part) {
        return (part.kind == pack::TemplatePart::Kind::token && part.token == before.front()) ||
               part.text.find(name) != std::string::npos;
      });
  if (!begins) {
    log::info("texts begin without '{}', which the tokenizer puts before texts elsewhere; {}",
              printable_name(name),
              has_template ? "{bos} in the template's begin adds it"
                           : "--add-special-tokens=yes adds it");
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
  if (!all.unused.empty()) {
    log::warning("fields that the template does not use: {}", describe_unused(all));
  }
}

void warn_of_bad(pack::Bad const& bad) {
  if (bad.lines > 0) {
    log::warning("bad lines left out (--skip-bad): {}; the first: {}", bad.lines, bad.first);
  }
}

void warn_of_replaced(pack::Replaced const& replaced) {
  if (replaced.bytes > 0) {
    log::warning(
        "bytes that are no UTF-8, in whose place are tokens of U+FFFD: {}; the first: {}; convert "
        "the text if it is of another encoding: iconv -f LATIN1 -t UTF-8 FILE > NEW",
        replaced.bytes, replaced.first);
  }
}

}  // namespace offstage::cli
