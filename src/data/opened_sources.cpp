#include "data/opened_sources.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/error.hpp"
#include "base/regular_file.hpp"
#include "data/globs.hpp"

namespace offstage::data {
namespace {

/// Bytes that pass as tokens of another vocabulary train without an error, and teach nothing.
void refuse_text_by_chance(DatasetOptions const& options, TokenFile const& file) {
  constexpr std::int64_t bytes = 256;
  if (options.format == Format::automatic && file.format() == Format::text &&
      options.vocab != bytes) {
    throw DataError{fmt::format(
        "{}={}: looks like text, and model.vocab={} is not the 256 of bytes; make tokens of it by "
        "the model's tokenizer (offstage data pack), or set data.format=text if each byte is a "
        "token",
        options.key, file.path(), options.vocab)};
  }
}

}  // namespace

OpenedSources::OpenedSources(std::vector<Source> const& sources, DatasetOptions const& options)
    : options_{options} {
  for (Source const& source : sources) {
    OpenedSource opened{.source = source, .files = {}, .empty = {}};
    auto const paths = expand_tokens(source.path, options.key);
    for (std::string const& path : paths) {
      if (paths.size() > 1 && is_empty_file(path)) {
        opened.empty.push_back(path);
      } else {
        opened.files.push_back(open(path));
      }
    }
    sources_.push_back(std::move(opened));
  }
}

std::vector<TokenFile const*> OpenedSources::unscanned() const {
  std::vector<TokenFile const*> files;
  for (OpenedSource const& source : sources_) {
    for (OpenedFile const& opened : source.files) {
      if (opened.awaits_scan) {
        files.push_back(opened.file.get());
      }
    }
  }
  return files;
}

void OpenedSources::take_documents(std::vector<std::vector<std::int64_t>> documents) {
  require(documents.size() == unscanned().size(), "OpenedSources: documents of other files");
  auto next = documents.begin();
  for (OpenedSource& source : sources_) {
    for (OpenedFile& opened : source.files) {
      if (opened.awaits_scan) {
        opened.documents = std::move(*next++);
        opened.awaits_scan = false;
      }
    }
  }
}

void OpenedSources::scan() {
  std::vector<std::vector<std::int64_t>> documents;
  for (TokenFile const* file : unscanned()) {
    documents.push_back(documents_by_separator(*file, *options_.separator));
  }
  take_documents(std::move(documents));
}

OpenedFile OpenedSources::open(std::string const& path) const {
  OpenedFile opened;
  opened.file = open_tokens(
      {.path = path, .key = options_.key, .format = options_.format, .vocab = options_.vocab});
  refuse_text_by_chance(options_, *opened.file);
  if (options_.uses_masks) {
    opened.mask = LossMask::beside(*opened.file, options_.key);
    if (auto const loss = opened.mask ? std::string{} : LossMask::loss_of(*opened.file);
        !loss.empty()) {
      throw DataError{fmt::format("{}={}", options_.key, loss)};
    }
  }
  if (opened.mask && options_.verifies_masks) {
    opened.mask->verify(*opened.file);
  }
  if (options_.held_out.any()) {
    hold_out(opened);
  }
  // Windows that cross documents need not know them, if these are not held apart.
  if (options_.rule != WindowRule::crossing || options_.documents_apart) {
    find_documents(opened);
  }
  return opened;
}

void OpenedSources::hold_out(OpenedFile& opened) const {
  auto const tokens = opened.file->tokens();
  auto const documents = opened.file->documents();
  bool const by_separator = !documents && options_.separator;
  if (by_separator) {
    require_separator();
  }
  double const held_out = options_.held_out.part;
  auto const begin = by_separator ? begin_of_held_out(*opened.file, held_out, *options_.separator)
                                  : begin_of_held_out(tokens, held_out, documents);
  bool const takes_end = options_.held_out.takes_end();
  if (opened.mask) {
    takes_end ? opened.mask->keep_from(begin) : opened.mask->keep_before(begin);
    if (!takes_end && opened.mask->counted() == 0) {
      throw DataError{fmt::format("{}={}, {}: no token counts there, by {}; hold out less",
                                  options_.key, opened.file->path(), options_.held_out.text(),
                                  opened.mask->path())};
    }
  }
  opened.file = takes_end ? section_of(std::move(opened.file), begin, tokens - begin, documents)
                          : section_of(std::move(opened.file), 0, begin, documents);
}

void OpenedSources::require_separator() const {
  if (*options_.separator < 0 || *options_.separator >= options_.vocab) {
    throw DataError{
        fmt::format("data.separator={} is no token of model.vocab={}; name the token that ends a "
                    "document",
                    *options_.separator, options_.vocab)};
  }
}

void OpenedSources::find_documents(OpenedFile& opened) const {
  auto stored = opened.file->documents();
  if (!stored && !options_.separator) {
    auto const [asks, other] =
        options_.rule == WindowRule::crossing
            ? std::pair{"data.attention=document", "data.attention=window"}
            : std::pair{options_.rule == WindowRule::apart ? "data.cross-documents=false"
                                                           : "data.cross-documents=whole",
                        "data.cross-documents=true"};
    throw DataError{fmt::format(
        "{}={}: {} data does not say where documents end, and {} must know; set data.separator to "
        "the token that ends one, or {}",
        options_.key, opened.file->path(), name_of(opened.file->format()), asks, other)};
  }
  if (!stored) {
    require_separator();
  }
  opened.ignores_separator = stored && options_.separator;
  opened.awaits_scan = !stored;
  opened.documents = std::move(stored).value_or(std::vector<std::int64_t>{});
}

}  // namespace offstage::data
