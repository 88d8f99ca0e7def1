#include "checkpoint/json_tree.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"

namespace offstage::checkpoint {
namespace {

constexpr std::size_t deepest = 5;
constexpr std::size_t most_keys = 16;

/// Builds the tree event by event.
class TreeBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit TreeBuilder(std::string const& path) : path_{path} {}

  [[nodiscard]] JsonNode take() { return std::move(root_); }

  bool null() override { return put({}); }
  bool boolean(bool /*value*/) override { return put({}); }
  bool number_float(number_float_t /*value*/, string_t const& /*text*/) override { return put({}); }
  bool binary(binary_t& /*value*/) override { return put({}); }
  bool number_integer(number_integer_t value) override { return put({value}); }
  bool number_unsigned(number_unsigned_t value) override {
    constexpr auto most = static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max());
    return put(value > most ? JsonNode{} : JsonNode{static_cast<std::int64_t>(value)});
  }
  bool string(string_t& value) override { return put({std::move(value)}); }

  bool start_object(std::size_t /*elements*/) override { return open({JsonNode::Object{}}); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*elements*/) override { return open({JsonNode::Array{}}); }
  bool end_array() override { return close(); }

  bool key(string_t& value) override {
    auto& object = std::get<JsonNode::Object>(open_.back()->value);
    bool const again = std::ranges::any_of(object, [&](auto const& m) { return m.name == value; });
    if (again || object.size() == most_keys) {
      unlike_a_manifest();
    }
    object.push_back({std::move(value), {}});
    return true;
  }

  bool parse_error(std::size_t /*position*/, std::string const& /*token*/,
                   nlohmann::json::exception const& /*error*/) override {
    throw DataError{path_ + ": not JSON; the file is damaged"};
  }

 private:
  [[noreturn]] void unlike_a_manifest() const {
    throw DataError{path_ + ": not JSON as a manifest is; the file is damaged"};
  }

  /// Puts a node at the text's place. Only the innermost array or object grows, so that pointers to
  /// those around it stay valid.
  JsonNode& place(JsonNode node) {
    if (open_.empty()) {
      return root_ = std::move(node);
    }
    if (auto* const array = std::get_if<JsonNode::Array>(&open_.back()->value)) {
      return array->emplace_back(std::move(node));
    }
    return std::get<JsonNode::Object>(open_.back()->value).back().node = std::move(node);
  }
  bool put(JsonNode node) {
    place(std::move(node));
    return true;
  }
  bool open(JsonNode node) {
    if (open_.size() == deepest) {
      unlike_a_manifest();
    }
    open_.push_back(&place(std::move(node)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string const& path_;
  JsonNode root_;
  std::vector<JsonNode*> open_;
};

}  // namespace

JsonNode parse_json(std::string_view text, std::string const& path) {
  TreeBuilder builder{path};
  nlohmann::json::sax_parse(text, &builder);
  return builder.take();
}

std::string quoted(std::string const& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (nlohmann::json::type_error const&) {
    throw DataError{"a name is not UTF-8"};
  }
}

}  // namespace offstage::checkpoint
