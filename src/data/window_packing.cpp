#include "data/window_packing.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>

#include "base/error.hpp"

namespace offstage::data {
namespace {

constexpr std::int64_t none = -1;

/// The window of each document, numbered as they are opened; `none`: left out.
std::vector<std::int64_t> best_fit(std::span<std::int64_t const> lengths, std::int64_t capacity) {
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [&](std::size_t document) { return lengths[document]; });
  std::vector<std::int64_t> window_of(lengths.size(), none);
  std::map<std::int64_t, std::vector<std::int64_t>> open;  // by the room that is left
  std::int64_t windows = 0;
  for (std::size_t const document : order) {
    std::int64_t const length = std::min(lengths[document], capacity);
    if (length == 0) {
      break;
    }
    std::int64_t window = windows;
    std::int64_t room = capacity;
    if (auto const fitting = open.lower_bound(length); fitting != open.end()) {
      room = fitting->first;
      window = fitting->second.back();
      fitting->second.pop_back();
      if (fitting->second.empty()) {
        open.erase(fitting);
      }
    } else {
      ++windows;
    }
    window_of[document] = window;
    if (room > length) {
      open[room - length].push_back(window);
    }
  }
  return window_of;
}

}  // namespace

PackedWindows pack_windows(std::span<std::int64_t const> lengths, std::int64_t capacity) {
  require(capacity >= 1, "pack_windows: a window has room");
  auto window_of = best_fit(lengths, capacity);
  std::vector<std::int64_t> number(lengths.size(), none);  // in the order of first documents
  PackedWindows packed{.documents = {}, .begins = {0}};
  for (std::int64_t& window : window_of) {
    if (window != none) {
      auto& known = number[static_cast<std::size_t>(window)];
      if (known == none) {
        known = std::ssize(packed.begins) - 1;
        packed.begins.push_back(0);
      }
      window = known;
      ++packed.begins[static_cast<std::size_t>(window) + 1];
    }
  }
  std::partial_sum(packed.begins.begin(), packed.begins.end(), packed.begins.begin());
  packed.documents.resize(static_cast<std::size_t>(packed.begins.back()));
  std::vector<std::int64_t> next{packed.begins.begin(), packed.begins.end()};
  for (std::size_t document = 0; document < window_of.size(); ++document) {
    if (window_of[document] != none) {
      auto const place = next[static_cast<std::size_t>(window_of[document])]++;
      packed.documents[static_cast<std::size_t>(place)] = static_cast<std::int64_t>(document);
    }
  }
  return packed;
}

}  // namespace offstage::data
