#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace offstage::checkpoint {

/// A JSON value. Its destructor takes no memory. That of the library's tree does, and so ends a
/// process that has no memory left.
struct JsonNode {
  struct Member;
  using Array = std::vector<JsonNode>;
  using Object = std::vector<Member>;

  /// std::monostate stands for null, true, false, and a number that is no std::int64_t.
  std::variant<std::monostate, std::int64_t, std::string, Array, Object> value;
};

struct JsonNode::Member {
  std::string name;
  JsonNode node;
};

/// Reads a text of few levels whose objects have few keys, as manifests are. Any other text is
/// refused before it takes memory.
/// Errors: DataError naming `path`: the text is not JSON, has more than 5 levels, or has an object
///         with more than 16 keys or with a key twice.
[[nodiscard]] JsonNode parse_json(std::string_view text, std::string const& path);

/// The text as a JSON string, with its quotes. Errors: DataError if it is not UTF-8.
[[nodiscard]] std::string quoted(std::string const& text);

}  // namespace offstage::checkpoint
