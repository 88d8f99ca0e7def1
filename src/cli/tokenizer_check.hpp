#pragma once

#include <string>
#include <vector>

#include "data/mixture.hpp"

namespace offstage::cli {

/// Files of tokens of one key or option.
struct TokenSources {
  std::string key;  ///< "data.train", "--data"
  std::vector<data::Source> sources;
};

/// Warns of files of tokens that were packed with another tokenizer than that of `model`, a Hugging
/// Face directory that `model_key` names, or, where it has none, than the first file that says what
/// made it. Reads the notes that `data pack` left; files without one, and files that are not there,
/// are passed over.
void warn_of_other_tokenizers(std::vector<TokenSources> const& all, std::string const& model_key,
                              std::string const& model);

}  // namespace offstage::cli
