#include "tokens/segments.hpp"

namespace offstage::tokens {
namespace {

/// Holds one part back, with which the next one may be joined.
class Joiner {
 public:
  Joiner(std::string_view text, Behavior behavior,
         std::function<void(std::string_view)> const& sink)
      : text_{text}, behavior_{behavior}, sink_{sink} {}

  void add(std::size_t begin, std::size_t end, bool is_match) {
    if (begin == end) {
      return;
    }
    if (held_.begin != held_.end && joins(is_match)) {
      held_.end = end;
    } else {
      release();
      held_ = {begin, end};
    }
    last_is_match_ = is_match;
  }

  void release() {
    bool const unwanted = behavior_ == Behavior::removed && last_is_match_;
    if (held_.begin != held_.end && !unwanted) {
      sink_(text_.substr(held_.begin, held_.end - held_.begin));
    }
    held_ = {};
  }

 private:
  /// True if a part goes with the one before it.
  [[nodiscard]] bool joins(bool is_match) const {
    switch (behavior_) {
      case Behavior::merged_with_previous:
        return is_match && !last_is_match_;
      case Behavior::merged_with_next:
        return !is_match && last_is_match_;
      case Behavior::contiguous:
        return is_match == last_is_match_;
      case Behavior::removed:
      case Behavior::isolated:
        break;
    }
    return false;
  }

  std::string_view text_;
  Behavior behavior_;
  std::function<void(std::string_view)> const& sink_;
  Range held_{};
  bool last_is_match_{};
};

}  // namespace

void split(std::string_view text, Behavior behavior, bool inverted,
           std::function<std::optional<Range>()> const& next_match,
           std::function<void(std::string_view)> const& sink) {
  Joiner joiner{text, behavior, sink};
  std::size_t at = 0;
  while (auto const match = next_match()) {
    joiner.add(at, match->begin, inverted);
    joiner.add(match->begin, match->end, !inverted);
    at = match->end;
  }
  joiner.add(at, text.size(), inverted);
  joiner.release();
}

}  // namespace offstage::tokens
