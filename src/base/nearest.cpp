#include "base/nearest.hpp"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace offstage {
namespace {

/// Levenshtein's distance with swaps of neighbours, one row at a time.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  auto above = row;
  auto two_above = row;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::swap(two_above, above);
    std::swap(above, row);
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      std::size_t const replaced = above[j] + (a[i] == b[j] ? 0 : 1);
      row[j + 1] = std::min({replaced, above[j + 1] + 1, row[j] + 1});
      if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j]) {
        row[j + 1] = std::min(row[j + 1], two_above[j - 1] + 1);
      }
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view word, std::span<std::string const> known) {
  require(!known.empty(), "nearest: no words");
  return *std::ranges::min_element(
      known, {}, [word](std::string const& candidate) { return distance(word, candidate); });
}

std::string nearest_within(std::string_view word, std::span<std::string const> known,
                           std::size_t most) {
  auto found = nearest(word, known);
  return distance(word, found) <= most ? found : std::string{};
}

std::string near_word(std::string_view word, std::span<std::string const> known) {
  auto const letters = [](std::string_view text) {
    return text.substr(std::min(text.find_first_not_of('-'), text.size()));
  };
  auto const begin = letters(word);
  auto const found = std::ranges::find_if(known, [&](std::string const& candidate) {
    return !begin.empty() && letters(candidate).starts_with(begin);
  });
  return found != known.end()
             ? *found
             : nearest_within(word, known, std::max<std::size_t>(1, begin.size() / 4));
}

}  // namespace offstage
