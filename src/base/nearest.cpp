#include "base/nearest.hpp"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace offstage {
namespace {

/// Levenshtein's distance, one row at a time.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      std::size_t const replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
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

}  // namespace offstage
