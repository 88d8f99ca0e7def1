#pragma once

#include <span>
#include <variant>

#include "base/dtype.hpp"

namespace offstage::update {

/// An accumulated gradient, and the part of the working copy that receives new parameters.
using GradientView =
    std::variant<std::span<float const>, std::span<bfloat16 const>, std::span<float16 const>>;
using WorkingCopyView = std::variant<std::span<float>, std::span<bfloat16>, std::span<float16>>;

/// Where a gradient's view points to.
enum class GradientPlace { host, device };

}  // namespace offstage::update
