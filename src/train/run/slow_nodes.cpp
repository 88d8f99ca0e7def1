#include "train/run/slow_nodes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <utility>

#include "train/memory/sums.hpp"

namespace offstage::train {
namespace {

constexpr double too_slow = 1.5;
constexpr Seconds worth_words{0.01};
constexpr std::int64_t look_every = 32;  ///< in steps
constexpr std::int64_t fewest_steps = 4;

}  // namespace

std::vector<SlowNode> slow_nodes(std::span<NodePace const> nodes) {
  if (nodes.size() < 2) {
    return {};
  }
  std::vector<NodePace> slowest_first{nodes.begin(), nodes.end()};
  std::ranges::stable_sort(slowest_first, std::ranges::greater{}, &NodePace::step);
  Seconds const median = slowest_first[nodes.size() / 2].step;
  std::vector<SlowNode> slow;
  for (auto const& [node, step] : slowest_first) {
    if (step <= too_slow * median || step < median + worth_words) {
      break;
    }
    slow.push_back(
        {node, fmt::format("{} is slow: its own part of a step takes {:.3g} s, {:.1f} times that "
                           "of the median of {} nodes, {:.3g} s; the others wait for it",
                           node, step.count(), step / median, nodes.size(), median.count())});
  }
  return slow;
}

SlowNodes::SlowNodes(config::RunConfig const& config, mpi::Communicator const& comm)
    : config_{config}, comm_{comm} {}

// Ranks with more micro-batches than others take longer, so only ranks with most are compared.
bool SlowNodes::is_judged() const {
  auto const rounds = dealt(config_, comm_.size());
  for (std::int64_t round = 0; round < rounds.count(); ++round) {
    if (!rounds.micro_batch(round, comm_.rank())) {
      return false;
    }
  }
  return true;
}

std::vector<SlowNode> SlowNodes::look_at(Sum const& sum) const {
  constexpr double not_judged = -1.0;
  auto const names = comm_.all_gather_texts(config_.node);
  auto const steps = comm_.all_gather_value(
      is_judged() ? sum.own.count() / static_cast<double>(sum.steps) : not_judged);
  std::map<std::string, Seconds> slowest;
  for (std::size_t rank = 0; rank < steps.size(); ++rank) {
    if (steps[rank] >= 0.0) {
      Seconds& node = slowest[names[rank]];
      node = std::max(node, Seconds{steps[rank]});
    }
  }
  std::vector<NodePace> nodes;
  for (auto const& [node, step] : slowest) {
    nodes.push_back({node, step});
  }
  return slow_nodes(nodes);
}

std::vector<std::string> SlowNodes::step_done(Seconds own) {
  if (comm_.size() == 1 || !std::exchange(begun_, true)) {
    return {};
  }
  for (Sum* const sum : {&all_, &recent_}) {
    sum->own += own;
    ++sum->steps;
  }
  std::vector<std::string> sentences;
  if (recent_.steps == look_every) {
    for (SlowNode& slow : look_at(std::exchange(recent_, {}))) {
      if (named_.insert(slow.node).second) {
        sentences.push_back(std::move(slow.sentence));
      }
    }
  }
  return sentences;
}

std::vector<std::string> SlowNodes::conclude() const {
  std::vector<std::string> sentences;
  if (all_.steps >= fewest_steps) {
    for (SlowNode& slow : look_at(all_)) {
      sentences.push_back(std::move(slow.sentence));
    }
  }
  return sentences;
}

}  // namespace offstage::train
