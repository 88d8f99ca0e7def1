#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace offstage::tokens {

/// One object of a JSON text, taken apart field by field. Whoever reads it asks for all fields that
/// it knows and calls finish(), which refuses the others: a field that means something must not be
/// passed over.
/// Errors:   DataError naming file, field ("pre_tokenizer.pretokenizers[1].behavior"), value and
///           what would be right.
/// Lifetime: the tree outlives it.
class Fields {
 public:
  /// `file` as errors name it; `where` is the object's place, empty for the outermost one.
  /// Errors: also if it is no object.
  Fields(nlohmann::json const& object, std::string file, std::string where);

  /// Null and absent are the same for all of these.
  [[nodiscard]] bool has(char const* name);
  [[nodiscard]] std::string text(char const* name);
  [[nodiscard]] std::string text(char const* name, char const* otherwise);
  [[nodiscard]] bool flag(char const* name, bool otherwise);
  [[nodiscard]] std::int64_t whole(char const* name, std::int64_t least, std::int64_t most);
  [[nodiscard]] Fields object(char const* name);
  [[nodiscard]] std::vector<Fields> objects(char const* name);
  /// The value as it is; an empty array if absent.
  [[nodiscard]] nlohmann::json const& value(char const* name);
  /// The object itself, whose fields have names that nobody knows.
  [[nodiscard]] nlohmann::json const& whole_object() const noexcept { return *object_; }
  /// Known, and of no effect here.
  void ignore(char const* name);

  /// The position of a text among `names`. Errors: also for a text that is none of them.
  [[nodiscard]] std::size_t choice(char const* name, std::vector<std::string> const& names,
                                   char const* otherwise);
  /// Errors: for the first field that nobody asked for.
  void finish() const;

  /// Throws DataError: file, the field's place, a colon, the problem.
  [[noreturn]] void fail(char const* name, std::string const& problem) const;
  /// The place of a field: "model.vocab".
  [[nodiscard]] std::string place(std::string_view name) const;
  [[nodiscard]] std::string const& file() const noexcept { return file_; }

 private:
  nlohmann::json const& find(char const* name);
  nlohmann::json const& find_known(char const* name);

  nlohmann::json const* object_;
  std::string file_;
  std::string where_;
  std::set<std::string> asked_;
};

}  // namespace offstage::tokens
