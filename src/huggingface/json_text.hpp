#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace offstage::huggingface {

/// Reads a JSON text whose outermost value is an object.
/// Errors: DataError naming `path`: not JSON, a key twice in one object (JSON libraries keep one of
///         them and do not say which), more than 32 levels.
[[nodiscard]] nlohmann::json parse_object(std::string_view text, std::string const& path);

}  // namespace offstage::huggingface
