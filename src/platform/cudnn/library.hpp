#pragma once

#include <memory>
#include <string>

#include "platform/cudnn/attention.hpp"

namespace offstage::cudnn {

/// A GPU that is not here, for tests of what would be chosen on it.
struct DescribedGpu {
  int capability{};  ///< 90: 9.0
  /// cuDNN's own JSON of a device (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION).
  std::string properties;
};

/// libcudnn, which is loaded and not linked: one program runs with it and without. Its frontend, a
/// library of headers, builds the graphs.
class Library {
 public:
  virtual ~Library() = default;
  /// "9.19.0"
  [[nodiscard]] virtual std::string version() const = 0;
  /// For the calling thread's current GPU, or for one that is described, whose plans cannot run. Of
  /// the plans that cuDNN's heuristic names it takes the first that can be built, and never
  /// measures: equal shapes, GPUs and versions get equal plans. The library must outlive them.
  /// Errors: CudnnError: it has none, says why.
  [[nodiscard]] virtual std::unique_ptr<Attention> plan(
      AttentionShape const& shape, DescribedGpu const* described = nullptr) const = 0;
};

/// Whether offstage was built with cuDNN's header and its frontend's; else no library can be
/// loaded.
[[nodiscard]] bool is_built_in() noexcept;

/// From this file, or where that is empty from where the system finds libcudnn.so.9, or else from
/// where it was when offstage was built. A process has one: the first that was loaded.
/// Errors: CudnnError: it is not there, or was not when offstage was built.
[[nodiscard]] std::unique_ptr<Library> load_library(std::string const& file = "");

}  // namespace offstage::cudnn
