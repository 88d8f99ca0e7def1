#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace offstage::tokens {

/// A place in a text, in bytes.
struct Range {
  std::size_t begin{};
  std::size_t end{};
};

/// A pattern of a tokenizer: a text to find as it is, or a regular expression as the `tokenizers`
/// package reads it, in Oniguruma's syntax.
///
/// Expressions are translated to PCRE2's syntax, as the two differ: \s, \w and \h name other
/// characters, (?m:) other options, {1,3}+ other repeats. The translation knows what tokenizers use
/// and refuses the rest by name.
/// Threads: any; each search belongs to one thread.
class Pattern {
 public:
  /// Errors: DataError that begins with `place` for what is not known, for mistakes, and for a
  ///         pattern that matches the empty text.
  static Pattern expression(std::string const& text, std::string const& place);
  static Pattern literal(std::string const& text, std::string const& place);
  ~Pattern();
  Pattern(Pattern const&) = delete;
  Pattern& operator=(Pattern const&) = delete;
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) = delete;

  /// Finds matches in one text, which is valid UTF-8 and outlives the search.
  class Search {
   public:
    Search(Pattern const& pattern, std::string_view text);
    ~Search();
    Search(Search const&) = delete;
    Search& operator=(Search const&) = delete;
    /// The next match behind the last one. Errors: DataError if the library gives up.
    [[nodiscard]] std::optional<Range> next();

   private:
    struct State;
    Pattern const& pattern_;
    std::string_view text_;
    std::size_t at_{};
    std::unique_ptr<State> state_;
  };

 private:
  struct Compiled;
  Pattern();
  std::string literal_;
  std::unique_ptr<Compiled> compiled_;
};

/// The expression in PCRE2's syntax. Errors: DataError that begins with `place`.
[[nodiscard]] std::string translate_expression(std::string_view text, std::string const& place);

}  // namespace offstage::tokens
