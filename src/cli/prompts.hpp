#pragma once

#include <string>
#include <vector>

namespace offstage::cli {

/// The text in a file, or in standard input where `path` is "-"; without the line's end at its end.
/// Errors: DataError naming `option`: those of data::InputFile, more than 64 MiB. IoError.
[[nodiscard]] std::string read_prompt(std::string const& path, std::string const& option);

/// Lines of a text, without their ends; empty ones are left out.
[[nodiscard]] std::vector<std::string> lines_of(std::string const& text);

}  // namespace offstage::cli
