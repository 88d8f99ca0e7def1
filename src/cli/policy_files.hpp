#pragma once

#include <span>
#include <string_view>

namespace offstage::cli {

/// A file of configs/policies as it was when the program was built.
struct PolicyFile {
  std::string_view name;  ///< "mlp"
  std::string_view text;
};

/// All policy files, sorted by name. CMake makes the source, so that an installed program has them.
[[nodiscard]] std::span<PolicyFile const> policy_files();

}  // namespace offstage::cli
