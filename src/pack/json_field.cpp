#include "pack/json_field.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/printable.hpp"
#include "pack/json_line.hpp"

namespace offstage::pack {
namespace {

/// Reads values as they come, and keeps one.
class Reader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Reader(std::string const& field) : field_{field} {}

  bool null() override { return other("null"); }
  bool boolean(bool /*value*/) override { return other("true or false"); }
  bool number_integer(std::int64_t /*value*/) override { return other("a number"); }
  bool number_unsigned(std::uint64_t /*value*/) override { return other("a number"); }
  bool number_float(double /*value*/, std::string const& /*text*/) override {
    return other("a number");
  }
  bool binary(nlohmann::json::binary_t& /*value*/) override { return other("binary"); }
  bool start_object(std::size_t /*elements*/) override {
    bool const good = depth_ == 0 || other("an object");
    ++depth_;
    return good;
  }
  bool end_object() override { return --depth_, true; }
  bool start_array(std::size_t /*elements*/) override {
    bool const good = other("an array");
    ++depth_;
    return good;
  }
  bool end_array() override { return --depth_, true; }
  bool key(std::string& name) override {
    if (depth_ == 1) {
      here_ = name == field_;
      if (here_ && text_) {
        problem = fmt::format("has the field '{}' twice", printable_name(field_));
        return false;
      }
    }
    return true;
  }
  bool string(std::string& value) override {
    if (depth_ == 0) {
      return other("a text");
    }
    if (depth_ == 1 && here_) {
      text_ = std::move(value);
      here_ = false;
    }
    return true;
  }
  bool parse_error(std::size_t position, std::string const& /*token*/,
                   nlohmann::json::exception const& error) override {
    problem = describe_json_mistake(position, error.what());
    return false;
  }

  [[nodiscard]] std::optional<std::string>& text() noexcept { return text_; }
  std::string problem;

 private:
  bool other(char const* what) {
    if (depth_ == 0) {
      problem = fmt::format("is {}, but an object is expected", what);
    } else if (depth_ == 1 && here_) {
      problem =
          fmt::format("has {} as field '{}', but a text is expected", what, printable_name(field_));
    }
    return problem.empty();
  }

  std::string const& field_;
  int depth_{};
  bool here_{};  ///< the next value of the outermost object is the field's
  std::optional<std::string> text_;
};

}  // namespace

std::string text_field(std::string_view line, std::string const& field, std::string const& place) {
  Reader reader{field};
  std::string changed;
  auto const json = with_nulls(line, changed);
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  if (reader.problem.empty() && !reader.text()) {
    reader.problem = fmt::format(
        "has no field '{}'; --field names another one, and --template packs conversations",
        printable_name(field));
  }
  if (!reader.problem.empty()) {
    throw DataError{fmt::format("{}: {}", place, reader.problem)};
  }
  return std::move(*reader.text());
}

}  // namespace offstage::pack
