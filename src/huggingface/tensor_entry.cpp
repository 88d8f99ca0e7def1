#include "huggingface/tensor_entry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace offstage::huggingface {
namespace {

struct Width {
  char const* dtype;
  std::int64_t bits;
};
// All that the format knows.
constexpr std::array<Width, 20> widths{{
    {"F32", 32},    {"BF16", 16},   {"F16", 16},    {"F64", 64},    {"I64", 64},
    {"I32", 32},    {"I16", 16},    {"I8", 8},      {"U64", 64},    {"U32", 32},
    {"U16", 16},    {"U8", 8},      {"BOOL", 8},    {"F8_E5M2", 8}, {"F8_E4M3", 8},
    {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},      {"C64", 64},
}};

}  // namespace

std::string shape_text(std::vector<std::int64_t> const& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size() && i < 8; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  }
  return text + (shape.size() > 8 ? ", ...]" : "]");
}

std::int64_t bits_of(std::string const& dtype) {
  auto const* const width = std::ranges::find(widths, dtype, &Width::dtype);
  return width == widths.end() ? 0 : width->bits;
}

}  // namespace offstage::huggingface
