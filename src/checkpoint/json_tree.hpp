#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace offstage::checkpoint {

/// A JSON value. Its destructor takes no memory, as that of the library's tree does, which ends a process that has
/// none left.
struct JsonNode {
  struct Member;
  using Array = std::vector<JsonNode>;
  using Object = std::vector<Member>;

  /// std::monostate: null, true, false, or a number that is no std::int64_t.
  std::variant<std::monostate, std::int64_t, std::string, Array, Object> value;
};

struct JsonNode::Member {
  std::string name;
  JsonNode node;
};

/// Reads a text of few levels and of objects with few keys, as manifests are; anything else takes no memory.
/// Errors: DataError naming `path`: not JSON, more than 5 levels, more than 16 keys in an object, or a key twice.
[[nodiscard]] JsonNode parse_json(std::string_view text, std::string const& path);

/// A text as JSON writes it, with its quotes. Errors: DataError if it is not UTF-8.
[[nodiscard]] std::string quoted(std::string const& text);

}  // namespace offstage::checkpoint
