#pragma once

#include <string>

namespace offstage {

/// "0.1.0".
[[nodiscard]] char const* version() noexcept;
/// "g++ 12.2.0, RelWithDebInfo, CUDA 13.0": how this program was built.
[[nodiscard]] char const* build_description() noexcept;
/// Libraries that it was built with: "oneDNN 2.6.0, HDF5 1.10.8, hwloc 2.9.0".
[[nodiscard]] char const* libraries() noexcept;
/// GPUs that it was compiled for: "80, 90", or "none".
[[nodiscard]] char const* gpu_architectures() noexcept;
/// "offstage 0.1.0 (commit 9e94a22f1c03, GNU 12.2.0, RelWithDebInfo, CUDA 13.0; cuBLASLt 13.1.0)":
/// this program, the commit of its sources, which the room cli knows, and the libraries on whose
/// versions its results depend.
[[nodiscard]] std::string program_text(std::string const& commit,
                                       std::string const& libraries = "");

}  // namespace offstage
