#pragma once

namespace offstage {

/// "0.1.0".
[[nodiscard]] char const* version() noexcept;
/// "g++ 12.2.0, RelWithDebInfo, CUDA 13.0": how this program was built.
[[nodiscard]] char const* build_description() noexcept;

}  // namespace offstage
