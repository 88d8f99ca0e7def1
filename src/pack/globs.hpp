#pragma once

#include <string>
#include <vector>

namespace offstage::pack {

/// The files that a name stands for: itself where such a file is there or where it has none of * ?
/// [, else those that it matches as a shell's pattern, sorted by bytes.
/// Errors: DataError naming `key` for a pattern that matches nothing.
[[nodiscard]] std::vector<std::string> expand(std::string const& name, std::string const& key);

}  // namespace offstage::pack
