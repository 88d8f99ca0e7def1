#include "data/window_packing.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <ranges>
#include <utility>

#include "base/error.hpp"

namespace offstage::data {
namespace {

constexpr std::int64_t none = -1;

/// The documents that are not left out, longest first; of one length in their order.
std::vector<std::size_t> by_length(std::span<std::int64_t const> lengths, std::int64_t capacity) {
  std::int64_t const most = lengths.empty() ? 0 : std::min(capacity, std::ranges::max(lengths));
  auto const length_of = [&](std::size_t document) {
    return static_cast<std::size_t>(std::min(lengths[document], most));
  };
  // Lengths are counted, not compared: there are millions of documents, and few lengths.
  std::vector<std::size_t> next(static_cast<std::size_t>(most) + 1);
  for (std::size_t document = 0; document < lengths.size(); ++document) {
    ++next[length_of(document)];
  }
  next[0] = 0;
  std::size_t begin = 0;
  for (std::size_t& place : next | std::views::reverse) {
    begin += std::exchange(place, begin);
  }
  std::vector<std::size_t> order(begin);
  for (std::size_t document = 0; document < lengths.size(); ++document) {
    if (lengths[document] > 0) {
      order[next[length_of(document)]++] = document;
    }
  }
  return order;
}

/// The window of each document, numbered as they are opened; `none`: left out.
std::vector<std::int64_t> best_fit(std::span<std::int64_t const> lengths, std::int64_t capacity) {
  std::vector<std::int64_t> window_of(lengths.size(), none);
  std::map<std::int64_t, std::vector<std::int64_t>> open;  // by the room that is left
  std::int64_t windows = 0;
  for (std::size_t const document : by_length(lengths, capacity)) {
    std::int64_t const length = std::min(lengths[document], capacity);
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
