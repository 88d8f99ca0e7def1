#include "tokens/fields.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/printable.hpp"

namespace offstage::tokens {
namespace {

nlohmann::json const absent = nullptr;
nlohmann::json const empty_array = nlohmann::json::array();

std::string shown(nlohmann::json const& value) {
  return printable_name(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

Fields::Fields(nlohmann::json const& object, std::string file, std::string where)
    : object_{&object}, file_{std::move(file)}, where_{std::move(where)} {
  if (!object.is_object()) {
    throw DataError{
        fmt::format("{}: {} is {}, but an object is expected", file_, where_, shown(object))};
  }
}

std::string Fields::place(std::string_view name) const {
  return where_.empty() ? std::string{name} : fmt::format("{}.{}", where_, name);
}

void Fields::fail(char const* name, std::string const& problem) const {
  throw DataError{fmt::format("{}: {}: {}", file_, place(name), problem)};
}

nlohmann::json const& Fields::find(char const* name) {
  asked_.insert(name);
  auto const found = object_->find(name);
  return found == object_->end() ? absent : *found;
}

nlohmann::json const& Fields::find_known(char const* name) {
  auto const& found = find(name);
  if (found.is_null()) {
    fail(name, "is missing");
  }
  return found;
}

bool Fields::has(char const* name) {
  return !find(name).is_null();
}

std::string Fields::text(char const* name) {
  auto const& found = find_known(name);
  if (!found.is_string()) {
    fail(name, fmt::format("is {}, but a text is expected", shown(found)));
  }
  return found.get<std::string>();
}

std::string Fields::text(char const* name, char const* otherwise) {
  return has(name) ? text(name) : otherwise;
}

bool Fields::flag(char const* name, bool otherwise) {
  auto const& found = find(name);
  if (!found.is_null() && !found.is_boolean()) {
    fail(name, fmt::format("is {}, but true or false is expected", shown(found)));
  }
  return found.is_null() ? otherwise : found.get<bool>();
}

std::int64_t Fields::whole(char const* name, std::int64_t least, std::int64_t most) {
  auto const& found = find_known(name);
  bool const fits = found.is_number_integer() &&
                    (!found.is_number_unsigned() || found.get<std::uint64_t>() <= INT64_MAX) &&
                    found.get<std::int64_t>() >= least && found.get<std::int64_t>() <= most;
  if (!fits) {
    fail(name, fmt::format("is {}, but a whole number from {} to {} is expected", shown(found),
                           least, most));
  }
  return found.get<std::int64_t>();
}

Fields Fields::object(char const* name) {
  return {find_known(name), file_, place(name)};
}

std::vector<Fields> Fields::objects(char const* name) {
  std::vector<Fields> all;
  auto const& found = value(name);
  if (!found.is_array()) {
    fail(name, fmt::format("is {}, but an array is expected", shown(found)));
  }
  for (nlohmann::json const& one : found) {
    all.emplace_back(one, file_, fmt::format("{}[{}]", place(name), all.size()));
  }
  return all;
}

nlohmann::json const& Fields::value(char const* name) {
  return has(name) ? find(name) : empty_array;
}

void Fields::ignore(char const* name) {
  asked_.insert(name);
}

std::size_t Fields::choice(char const* name, std::vector<std::string> const& names,
                           char const* otherwise) {
  auto const given = text(name, otherwise);
  auto const found = std::ranges::find(names, given);
  if (found == names.end()) {
    fail(name, fmt::format("'{}' is not known here; known are {}", printable_name(given),
                           fmt::join(names, ", ")));
  }
  return static_cast<std::size_t>(found - names.begin());
}

void Fields::finish() const {
  for (auto const& [name, value] : object_->items()) {
    if (!asked_.contains(name)) {
      throw DataError{fmt::format("{}: {}: is not known here; its value is {}", file_,
                                  place(printable_name(name)), shown(value))};
    }
  }
}

}  // namespace offstage::tokens
