#pragma once

#include <string>
#include <string_view>

namespace offstage::pack {

/// The text of a field of a JSON object; `line` is the whole object.
/// Errors: DataError that begins with `place`: no JSON, no object, or a field that is missing,
///         comes twice or is no text.
[[nodiscard]] std::string text_field(std::string_view line, std::string const& field,
                                     std::string const& place);

}  // namespace offstage::pack
