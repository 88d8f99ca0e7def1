#include "train/report/places.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>

namespace offstage::train {
namespace {

constexpr char const* digits = "0123456789";
constexpr std::size_t most_digits = 18;  // digits of a number that fits into 64 bits

/// The common parts of names that differ only in a number.
struct Stem {
  std::string before;
  std::size_t width{};  ///< digits of the number; 0: there is none
  std::string behind;   ///< text behind the number: the domain
  auto operator<=>(Stem const&) const = default;
};

/// Splits a name: "node07.site" is "node", 2 digits, ".site" with number 7.
std::pair<Stem, std::int64_t> split(std::string const& name) {
  std::size_t const end = std::min(name.find('.'), name.size());
  std::size_t const last = end == 0 ? std::string::npos : name.find_last_not_of(digits, end - 1);
  std::size_t begin = last == std::string::npos ? 0 : last + 1;
  begin = std::max(begin, end - std::min(end, most_digits));
  std::size_t const width = end - begin;
  return {{name.substr(0, begin), width, name.substr(end)},
          width > 0 ? std::stoll(name.substr(begin, width)) : 0};
}

/// Numbers as ranges: "1-3,7". They ascend, and each comes once.
std::string ranges(std::vector<std::int64_t> const& numbers, std::size_t width) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) {
      ++end;
    }
    text += fmt::format("{}{:0{}}", text.empty() ? "" : ",", numbers[i], width);
    if (end > i + 1) {
      text += fmt::format("-{:0{}}", numbers[end - 1], width);
    }
    i = end;
  }
  return text;
}

struct Node {
  std::string name;
  std::vector<std::int64_t> ranks;
  std::string places;  ///< places of its ranks
};

/// The nodes in the order of their first ranks.
std::vector<Node> nodes_of(std::span<PlaceLine const> ranks) {
  std::vector<Node> nodes;
  std::unordered_map<std::string, std::size_t> known;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    auto const [found, is_new] = known.emplace(ranks[rank].node, nodes.size());
    if (is_new) {
      nodes.push_back({ranks[rank].node, {}, {}});
    }
    Node& node = nodes[found->second];
    node.ranks.push_back(static_cast<std::int64_t>(rank));
    node.places += fmt::format("{}{}", node.places.empty() ? "" : "; ", ranks[rank].place);
  }
  return nodes;
}

}  // namespace

std::string join_names(std::vector<std::string> names) {
  std::ranges::sort(names);
  // Numbers of one width go together: node9 and node10 are written apart, node09 and node10 as one.
  std::map<Stem, std::vector<std::int64_t>> stems;
  for (std::string const& name : names) {
    auto const [stem, number] = split(name);
    stems[stem].push_back(number);
  }
  std::string text;
  for (auto& [stem, numbers] : stems) {
    std::ranges::sort(numbers);
    numbers.erase(std::ranges::unique(numbers).begin(), numbers.end());
    bool const alone = numbers.size() == 1;
    text += fmt::format("{}{}", text.empty() ? "" : ",", stem.before);
    if (stem.width > 0) {
      std::string const all = ranges(numbers, stem.width);
      text += alone ? all : fmt::format("[{}]", all);
    }
    text += stem.behind;
  }
  return text;
}

std::vector<std::string> describe_places(std::span<PlaceLine const> ranks) {
  std::vector<Node> const nodes = nodes_of(ranks);
  std::map<std::pair<std::size_t, std::string>, std::vector<Node const*>> alike;
  for (Node const& node : nodes) {
    alike[{node.ranks.size(), node.places}].push_back(&node);
  }
  std::vector<std::string> lines;
  for (Node const& node : nodes) {
    auto const& group = alike.at({node.ranks.size(), node.places});
    if (group.size() == 1) {
      for (std::int64_t const rank : node.ranks) {
        auto const& line = ranks[static_cast<std::size_t>(rank)];
        lines.push_back(fmt::format("rank {:<4} {}  {}", rank, line.node, line.place));
      }
    } else if (group.front() == &node) {
      std::vector<std::string> names;
      std::vector<std::int64_t> all;
      for (Node const* const each : group) {
        names.push_back(each->name);
        all.insert(all.end(), each->ranks.begin(), each->ranks.end());
      }
      std::ranges::sort(all);
      lines.push_back(fmt::format("{}: {} rank{} each ({}): {}", join_names(std::move(names)),
                                  node.ranks.size(), node.ranks.size() == 1 ? "" : "s",
                                  ranges(all, 1), node.places));
    }
  }
  return lines;
}

}  // namespace offstage::train
