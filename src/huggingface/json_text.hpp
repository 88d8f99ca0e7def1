#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace offstage::huggingface {

/// Levels of the deepest text that is read. Copying a tree and writing it take stack for each
/// level.
constexpr int deepest_json = 32;

/// Takes a tree apart from the leaves on. The library's own destructor asks for memory on the way,
/// and ends the process where there is none.
struct JsonEnd {
  void operator()(nlohmann::json* tree) const noexcept;
};
using JsonTree = std::unique_ptr<nlohmann::json, JsonEnd>;

/// Reads a JSON text whose outermost value is an object.
/// Errors: DataError naming `path`: not JSON, a key twice in one object (JSON libraries keep one of
///         them and do not say which), more than deepest_json levels.
[[nodiscard]] JsonTree parse_object(std::string_view text, std::string const& path);

}  // namespace offstage::huggingface
