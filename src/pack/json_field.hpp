#pragma once

#include <string>
#include <string_view>

namespace offstage::pack {

/// The text of a field of a JSON object, which stands whole in `line`.
/// Errors: DataError that begins with `place`: no JSON, no object, the field missing, twice, or no
///         text.
[[nodiscard]] std::string text_field(std::string_view line, std::string const& field,
                                     std::string const& place);

}  // namespace offstage::pack
