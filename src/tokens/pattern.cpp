#include "tokens/pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.hpp"
#include "base/printable.hpp"

namespace offstage::tokens {
namespace {

std::string message_of(int code) {
  std::array<unsigned char, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<char const*>(text.data());
}

// Far more than any pattern of a tokenizer needs; taken as it is used.
constexpr std::size_t smallest_stack = std::size_t{32} << 10;
constexpr std::size_t largest_stack = std::size_t{8} << 20;
constexpr std::uint32_t largest_heap_kib = 1 << 20;

/// Steps that a match may take. A tokenizer's own patterns take a few for each byte, and one that
/// tries all ways through a text would not end.
std::uint32_t most_steps(std::size_t bytes) {
  constexpr std::size_t always = 50'000'000;
  constexpr std::size_t of_byte = 100;
  constexpr std::size_t most = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::min(always + of_byte * std::min(bytes, most), most));
}

}  // namespace

struct Pattern::Compiled {
  explicit Compiled(pcre2_code* compiled) : code{compiled} {}
  ~Compiled() { pcre2_code_free(code); }
  Compiled(Compiled const&) = delete;
  Compiled& operator=(Compiled const&) = delete;
  pcre2_code* code;
  bool fast{};  ///< compiled to machine code
};

struct Pattern::Search::State {
  State(Compiled const& compiled, std::size_t bytes)
      : data{pcre2_match_data_create_from_pattern(compiled.code, nullptr)},
        context{pcre2_match_context_create(nullptr)} {
    if (data == nullptr || context == nullptr) {
      free();
      throw std::bad_alloc{};
    }
    pcre2_set_match_limit(context, most_steps(bytes));
    pcre2_set_depth_limit(context, UINT32_MAX);
    pcre2_set_heap_limit(context, largest_heap_kib);
  }
  ~State() { free(); }
  State(State const&) = delete;
  State& operator=(State const&) = delete;

  /// The machine's stack is used until it does not do.
  void enlarge() {
    stack = pcre2_jit_stack_create(smallest_stack, largest_stack, nullptr);
    if (stack == nullptr) {
      throw std::bad_alloc{};
    }
    pcre2_jit_stack_assign(context, nullptr, stack);
  }

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack = nullptr;

 private:
  void free() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

Pattern::Pattern() = default;
Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;

Pattern Pattern::literal(std::string const& text, std::string const& place) {
  if (text.empty()) {
    throw DataError{place + ": is empty; a text to find is expected"};
  }
  Pattern pattern;
  pattern.literal_ = text;
  return pattern;
}

Pattern Pattern::expression(std::string const& text, std::string const& place) {
  auto const translated = translate_expression(text, place);
  int code = 0;
  std::size_t offset = 0;
  // Lines: ^ and $ match at their ends in Oniguruma's syntax.
  auto* const compiled = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &offset, nullptr);
  if (compiled == nullptr) {
    throw DataError{fmt::format("{}: the pattern '{}' cannot be compiled: {}", place,
                                printable_name(text), message_of(code))};
  }
  Pattern pattern;
  pattern.compiled_ = std::make_unique<Compiled>(compiled);
  std::uint32_t matches_empty = 0;
  pcre2_pattern_info(compiled, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    throw DataError{
        fmt::format("{}: the pattern '{}' matches the empty text, which is not known here", place,
                    printable_name(text))};
  }
  pattern.compiled_->fast = pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0;
  return pattern;
}

Pattern::Search::Search(Pattern const& pattern, std::string_view text)
    : pattern_{pattern}, text_{text} {
  if (pattern.compiled_) {
    state_ = std::make_unique<State>(*pattern.compiled_, text.size());
  }
}
Pattern::Search::~Search() = default;

std::optional<Range> Pattern::Search::next() {
  if (!pattern_.compiled_) {
    auto const found = text_.find(pattern_.literal_, at_);
    if (found == std::string_view::npos) {
      return std::nullopt;
    }
    at_ = found + pattern_.literal_.size();
    return Range{found, at_};
  }
  auto const* const text = reinterpret_cast<PCRE2_SPTR>(text_.data());
  auto const* const compiled = pattern_.compiled_->code;
  auto const match_fast = [&] {
    return pcre2_jit_match(compiled, text, text_.size(), at_, 0, state_->data, state_->context);
  };
  int code = pattern_.compiled_->fast ? match_fast() : PCRE2_ERROR_JIT_STACKLIMIT;
  if (code == PCRE2_ERROR_JIT_STACKLIMIT && pattern_.compiled_->fast && state_->stack == nullptr) {
    state_->enlarge();
    code = match_fast();
  }
  if (code == PCRE2_ERROR_JIT_STACKLIMIT) {
    // Slower, and with no stack but the heap.
    code = pcre2_match(compiled, text, text_.size(), at_, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       state_->data, state_->context);
  }
  if (code == PCRE2_ERROR_NOMATCH) {
    return std::nullopt;
  }
  if (code < 0) {
    throw DataError{fmt::format("a pattern of the tokenizer cannot split the text at byte {}: {}",
                                at_, message_of(code))};
  }
  auto const* const ends = pcre2_get_ovector_pointer(state_->data);
  at_ = ends[1];
  return Range{ends[0], ends[1]};
}

}  // namespace offstage::tokens
