#include "cli/tokenizer_check.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/regular_file.hpp"
#include "data/globs.hpp"
#include "data/tokenizer_note.hpp"
#include "tokens/open_tokenizer.hpp"

namespace offstage::cli {
namespace {

struct NotedFile {
  std::string named;  ///< "data.train=chats.bin"
  data::TokenizerNote note;
};

/// The files of a source; none if they cannot be found, which whoever opens the data says.
std::vector<std::string> paths_of(data::Source const& source, std::string const& key) {
  try {
    return data::expand_tokens(source.path, key);
  } catch (Error const&) {
    return {};
  }
}

std::vector<NotedFile> noted_files(std::vector<TokenSources> const& all) {
  std::vector<NotedFile> files;
  for (auto const& [key, sources] : all) {
    for (data::Source const& source : sources) {
      for (std::string const& path : paths_of(source, key)) {
        try {
          if (auto note = data::note_beside(path)) {
            files.push_back({fmt::format("{}={}", key, printable_name(path)), *std::move(note)});
          }
        } catch (IoError const& error) {
          log::warning("{}={}: {}; which tokenizer made its tokens is not known", key,
                       printable_name(path), error.what());
        }
      }
    }
  }
  return files;
}

/// The sample of a Hugging Face directory's tokenizer; nullopt if it has none that is known.
std::optional<std::uint64_t> sample_of_model(std::string const& model) {
  try {
    if (model.empty() || !is_directory(model)) {
      return std::nullopt;
    }
    return data::sample_of(*tokens::open_tokenizer(model, "--tokenizer"));
  } catch (Error const&) {
    return std::nullopt;
  }
}

}  // namespace

void warn_of_other_tokenizers(std::vector<TokenSources> const& all, std::string const& model_key,
                              std::string const& model) {
  auto const files = noted_files(all);
  if (files.empty()) {
    return;
  }
  auto const of_model = sample_of_model(model);
  for (auto const& [named, note] : files) {
    if (of_model && note.sample != *of_model) {
      log::warning(
          "{}: its tokens are those of the tokenizer {}, and {}={} has one that makes others of "
          "the same text; pack it again with --tokenizer={}",
          named, note.name, model_key, printable_name(model), printable_name(model));
    } else if (!of_model && note.sample != files.front().note.sample) {
      log::warning(
          "{}: its tokens are those of the tokenizer {}, and {} has those of {}, which makes "
          "others of the same text",
          named, note.name, files.front().named, files.front().note.name);
    }
  }
}

}  // namespace offstage::cli
