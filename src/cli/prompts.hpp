#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.hpp"
#include "pack/template.hpp"

namespace offstage::cli {

/// The tokens that a model is to continue, and what they stand for.
struct Prompt {
  std::vector<std::int32_t> tokens{};
  std::optional<std::string> text{};    ///< as given; of a conversation what the model is to answer
  std::optional<std::string> answer{};  ///< a conversation's own, which the model does not see
};

/// The text of a file, or of standard input if `path` is "-", without a line end at its end.
/// Errors: DataError naming `option`: those of data::InputFile, and a text of more than 64 MiB.
///         IoError.
[[nodiscard]] std::string read_prompt(std::string const& path, std::string const& option);

/// The lines of a text, without their ends.
[[nodiscard]] std::vector<std::string> lines_of(std::string const& text);

/// A prompt for each conversation in the lines of `text` (pack::read_conversation): its messages up
/// to the last one, and that one, too, if it is of no learned role. Blank lines have none. `place`
/// is in front of errors.
/// Errors: DataError for a line that is no conversation, or has nothing to answer.
[[nodiscard]] std::vector<Prompt> prompts_of_conversations(std::string const& text,
                                                           std::string const& place,
                                                           pack::Template const& form,
                                                           data::Tokenizer const& tokenizer);

}  // namespace offstage::cli
