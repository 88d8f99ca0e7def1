#pragma once

#include "tokens/fields.hpp"
#include "tokens/pattern.hpp"

namespace offstage::tokens {

/// A field of the form {"String": "x"} or {"Regex": "x"}. Errors: as of Fields and Pattern.
[[nodiscard]] Pattern pattern_field(Fields& fields, char const* name);

}  // namespace offstage::tokens
