#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "platform/cudnn/attention.hpp"
#include "platform/cudnn/library.hpp"

namespace offstage {

/// Attention by cuDNN on the calling thread's current GPU, where it has the shape.
struct CudnnAttention {
  explicit CudnnAttention(cudnn::AttentionShape const& shape) {
    try {
      library = cudnn::load_library();
      plans = library->plan(shape);
      said = fmt::format("cuDNN {} ({})", library->version(), plans->plans());
    } catch (cudnn::CudnnError const& error) {
      said = fmt::format("own: {}", error.what());
      std::ranges::replace(said, '"', '\'');  // it stands in JSON
    }
  }

  std::unique_ptr<cudnn::Library> library;
  std::unique_ptr<cudnn::Attention> plans;  ///< null: there is none
  std::string said;                         ///< its version and plans, or why there are none
};

}  // namespace offstage
