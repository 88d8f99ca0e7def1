#pragma once

#include <string>

namespace offstage {

/// "0.1.0".
[[nodiscard]] char const* version() noexcept;
/// "g++ 12.2.0, RelWithDebInfo, CUDA 13.0": how this program was built.
[[nodiscard]] char const* build_description() noexcept;
/// "offstage 0.1.0 (g++ 12.2.0, RelWithDebInfo, CUDA 13.0; cuBLASLt 13.1.0)": this program with the `libraries` on whose
/// versions its results depend.
[[nodiscard]] std::string program_text(std::string const& libraries = "");

}  // namespace offstage
