#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace offstage::data {

/// data.cross-documents: which tokens share a window.
enum class WindowRule {
  crossing,  ///< true: those that lie one behind the other, whatever their documents
  apart,     ///< false: those of one document
  whole,     ///< whole: those of whole documents, as many as fit
};
/// The rules' names for users.
constexpr std::array<std::pair<char const*, WindowRule>, 3> rule_words{
    {{"true", WindowRule::crossing}, {"false", WindowRule::apart}, {"whole", WindowRule::whole}}};
/// Names of data.attention, and whether it holds documents apart.
constexpr std::array<std::pair<char const*, bool>, 2> attention_words{
    {{"window", false}, {"document", true}}};

/// Windows of whole documents.
struct PackedWindows {
  std::vector<std::int64_t> documents;  ///< their numbers, window by window, ascending in each
  /// First place of each window in `documents`, and the end of the last.
  std::vector<std::int64_t> begins;
};

/// Packs documents of these lengths into windows of `capacity`: a document that is longer takes one
/// alone; one of length 0 is left out. Windows come in the order of their first documents.
/// Source: best fit, longest first: Ding et al., "Fewer Truncations Improve Language Modeling",
///         arXiv:2404.10830.
/// Memory: some 40 bytes per document on the way. Time: n log(capacity).
[[nodiscard]] PackedWindows pack_windows(std::span<std::int64_t const> lengths,
                                         std::int64_t capacity);

}  // namespace offstage::data
