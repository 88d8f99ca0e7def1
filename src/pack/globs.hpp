#pragma once

#include <string>
#include <vector>

namespace offstage::pack {

/// The files for which a name stands: the name itself if there is such a file or if it has none of
/// * ? [, else the files that it matches as a shell's pattern, sorted by bytes.
/// Errors: DataError naming `key` for a pattern that matches nothing.
[[nodiscard]] std::vector<std::string> expand(std::string const& name, std::string const& key);

}  // namespace offstage::pack
