#pragma once

#include <string>
#include <vector>

namespace offstage::cli {

/// The text of a file, or of standard input if `path` is "-", without a line end at its end.
/// Errors: DataError naming `option`: those of data::InputFile, and a text of more than 64 MiB.
///         IoError.
[[nodiscard]] std::string read_prompt(std::string const& path, std::string const& option);

/// The lines of a text, without their ends and without empty lines.
[[nodiscard]] std::vector<std::string> lines_of(std::string const& text);

}  // namespace offstage::cli
