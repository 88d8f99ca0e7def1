#include "data/summary.hpp"

#include <algorithm>
#include <cmath>

namespace offstage::data {
namespace {

double entropy_of(std::vector<std::int64_t> const& counts, std::int64_t total) {
  double entropy{};
  for (auto const count : counts) {
    if (count == 0) {
      continue;
    }
    double const p = static_cast<double>(count) / static_cast<double>(total);
    entropy -= p * std::log(p);
  }
  return entropy;
}

/// From where documents begin to how long they are, ascending.
std::vector<std::int64_t> lengths_of(std::vector<std::int64_t> begins, std::int64_t tokens) {
  for (std::size_t i = 0; i < begins.size(); ++i) {
    begins[i] = (i + 1 < begins.size() ? begins[i + 1] : tokens) - begins[i];
  }
  std::ranges::sort(begins);
  return begins;
}

}  // namespace

Summary summarize(TokenFile const& file, std::optional<std::int32_t> separator) {
  Summary summary;
  summary.tokens = file.tokens();
  std::vector<std::int64_t> counts;
  for_each_piece(file, [&](std::int64_t, std::span<std::int32_t const> tokens) {
    auto const needed = static_cast<std::size_t>(std::ranges::max(tokens)) + 1;
    counts.resize(std::max(counts.size(), needed));
    for (auto const token : tokens) {
      ++counts[static_cast<std::size_t>(token)];
    }
  });
  auto const first = std::ranges::find_if(counts, [](std::int64_t count) { return count > 0; });
  summary.smallest = static_cast<std::int32_t>(first - counts.begin());
  summary.largest = static_cast<std::int32_t>(counts.size()) - 1;
  summary.unigram_entropy = entropy_of(counts, file.tokens());
  auto begins = file.documents();
  if (!begins && separator) {
    begins = documents_by_separator(file, *separator);
  }
  if (begins) {
    summary.document_tokens = lengths_of(std::move(*begins), file.tokens());
  }
  return summary;
}

}  // namespace offstage::data
