#include "huggingface/json_text.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/error.hpp"
#include "base/printable.hpp"

namespace offstage::huggingface {
namespace {

/// Sees every key before the library drops one of two.
class Guard {
 public:
  explicit Guard(std::string const& path) : path_{path} {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > deepest_json) {
      throw DataError{fmt::format("{}: is nested more than {} levels deep", path_, deepest_json)};
    }
    if (event == Event::object_start) {
      keys_.emplace_back();
    } else if (event == Event::object_end) {
      keys_.pop_back();
    } else if (event == Event::key) {
      auto const& key = parsed.get_ref<std::string const&>();
      if (!keys_.back().insert(key).second) {
        throw DataError{fmt::format("{}: has the key '{}' twice", path_, printable_name(key))};
      }
    }
    return true;
  }

 private:
  std::string const& path_;
  std::vector<std::set<std::string>> keys_;
};

/// No array or object in it has elements then.
void empty(nlohmann::json& tree) noexcept {
  if (tree.is_structured()) {
    for (nlohmann::json& child : tree) {
      empty(child);
    }
    tree.clear();
  }
}

}  // namespace

void JsonEnd::operator()(nlohmann::json* tree) const noexcept {
  empty(*tree);
  delete tree;
}

JsonTree parse_object(std::string_view text, std::string const& path) {
  Guard guard{path};
  JsonTree parsed{new nlohmann::json};
  try {
    *parsed = nlohmann::json::parse(text, std::ref(guard));
  } catch (nlohmann::json::parse_error const& error) {
    throw DataError{fmt::format("{}: {}", path, describe_json_mistake(error.byte, error.what()))};
  } catch (nlohmann::json::exception const& error) {
    throw DataError{
        fmt::format("{}: is no JSON that can be read: {}", path, printable_name(error.what()))};
  }
  if (!parsed->is_object()) {
    throw DataError{path + ": is no JSON object"};
  }
  return parsed;
}

}  // namespace offstage::huggingface
