#include "tokens/pattern_field.hpp"

#include <fmt/format.h>

namespace offstage::tokens {

Pattern pattern_field(Fields& fields, char const* name) {
  Fields pattern = fields.object(name);
  char const* const kind = pattern.has("Regex") ? "Regex" : "String";
  auto const text = pattern.text(kind);
  pattern.finish();
  auto const place = fmt::format("{}: {}", fields.file(), pattern.place(kind));
  return kind[0] == 'R' ? Pattern::expression(text, place) : Pattern::literal(text, place);
}

}  // namespace offstage::tokens
