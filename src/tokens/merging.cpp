#include "tokens/merging.hpp"

#include <cstddef>
#include <functional>
#include <iterator>
#include <queue>
#include <utility>

namespace offstage::tokens {
namespace {

// Up to here looking through all pairs is faster than a queue.
constexpr std::size_t few = 48;

void merge_few(PairTable const& merges, std::vector<std::int32_t>& tokens) {
  std::vector<PairTable::Merge> pairs(tokens.size());
  auto const look_up = [&](std::size_t i) {
    pairs[i] = i + 1 < tokens.size() ? merges.find(tokens[i], tokens[i + 1]) : PairTable::Merge{};
  };
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    look_up(i);
  }
  for (;;) {
    std::size_t best = tokens.size();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (pairs[i].rank >= 0 && (best == tokens.size() || pairs[i].rank < pairs[best].rank)) {
        best = i;
      }
    }
    if (best == tokens.size()) {
      return;
    }
    tokens[best] = pairs[best].token;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    look_up(best);
    if (best > 0) {
      look_up(best - 1);
    }
  }
}

/// A list of neighbours, and a queue of the pairs among them; entries of pairs that are no more
/// stay in it and are passed over.
class Queue {
 public:
  Queue(PairTable const& merges, std::vector<std::int32_t>& tokens)
      : merges_{merges}, tokens_{tokens} {
    auto const size = std::ssize(tokens);
    for (std::ptrdiff_t i = 0; i < size; ++i) {
      previous_.push_back(i - 1);
      next_.push_back(i + 1 < size ? i + 1 : -1);
    }
    for (std::ptrdiff_t i = 0; i < size; ++i) {
      add(i);
    }
  }

  void run() {
    while (!queue_.empty()) {
      auto const [rank, left] = queue_.top();
      queue_.pop();
      auto const merge = of(left);
      if (merge.rank != rank) {
        continue;
      }
      auto const right = at(next_, left);
      token(left) = merge.token;
      token(right) = -1;
      at(next_, left) = at(next_, right);
      if (at(next_, right) >= 0) {
        at(previous_, at(next_, right)) = left;
      }
      at(next_, right) = -1;
      add(left);
      if (at(previous_, left) >= 0) {
        add(at(previous_, left));
      }
    }
    std::erase(tokens_, -1);
  }

 private:
  using Entry = std::pair<std::int32_t, std::ptrdiff_t>;  ///< rank, left one

  static std::ptrdiff_t& at(std::vector<std::ptrdiff_t>& all, std::ptrdiff_t i) {
    return all[static_cast<std::size_t>(i)];
  }
  std::int32_t& token(std::ptrdiff_t i) { return tokens_[static_cast<std::size_t>(i)]; }

  PairTable::Merge of(std::ptrdiff_t left) {
    auto const right = at(next_, left);
    return right < 0 ? PairTable::Merge{} : merges_.find(token(left), token(right));
  }
  void add(std::ptrdiff_t left) {
    if (auto const merge = of(left); merge.rank >= 0) {
      queue_.emplace(merge.rank, left);
    }
  }

  PairTable const& merges_;
  std::vector<std::int32_t>& tokens_;
  std::vector<std::ptrdiff_t> previous_;
  std::vector<std::ptrdiff_t> next_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

}  // namespace

void merge_all(PairTable const& merges, std::vector<std::int32_t>& tokens) {
  if (tokens.size() <= few) {
    merge_few(merges, tokens);
  } else {
    Queue{merges, tokens}.run();
  }
}

}  // namespace offstage::tokens
