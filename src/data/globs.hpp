#pragma once

#include <string>
#include <vector>

namespace offstage::data {

/// The files for which a name stands: the name itself if there is such a file or if it has none of
/// * ? [, else the files that it matches as a shell's pattern, sorted by bytes.
/// Errors: DataError naming `key`, which may be empty, for a pattern that matches nothing; IoError
/// if a directory or a name cannot be looked at that this user may look at.
[[nodiscard]] std::vector<std::string> expand(std::string const& name, std::string const& key);

/// The same for files of tokens. A PREFIX.idx, a PREFIX.mask and a PREFIX.tokenizer belong to a
/// PREFIX.bin that matches too, and are no files of their own; a prefix of Megatron data is a file.
[[nodiscard]] std::vector<std::string> expand_tokens(std::string const& name,
                                                     std::string const& key);

}  // namespace offstage::data
