#include "cli/same_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "base/printable.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "cli/commit.hpp"

namespace offstage::cli {
namespace {

constexpr std::string_view path_key = "tiers.path";

/// Keys whose values may differ from node to node; of tiers.path the directory alone.
constexpr std::array<std::string_view, 4> of_nodes{path_key, "data.train", "data.valid",
                                                   "run.threads"};

/// The attributes of a tiers.path, behind its directory: ",persistent".
std::string_view attributes_of(std::string_view value) {
  return value.substr(std::min(value.find(','), value.size()));
}

/// One value of a rank. The texts have no zero byte: they were arguments or lines of a file.
struct Row {
  std::string_view key, value, origin;
};

std::vector<Row> rows_of(std::string_view text) {
  std::vector<Row> rows;
  while (!text.empty()) {
    auto const key = take_until('\0', text);
    auto const value = take_until('\0', text);
    rows.push_back({key, value, take_until('\0', text)});
  }
  return rows;
}

bool same(Row const& a, Row const& b) {
  bool const may_differ = std::ranges::find(of_nodes, a.key) != of_nodes.end();
  bool const alike = a.key != path_key || attributes_of(a.value) == attributes_of(b.value);
  return a.key == b.key &&
         (a.value == b.value || (may_differ && alike && a.value.empty() == b.value.empty()));
}

std::string shown(Row const& row) {
  return fmt::format("{} ({})", row.value.empty() ? "empty" : printable_name(row.value),
                     printable_name(row.origin));
}

}  // namespace

std::string text_for_ranks(std::vector<config::Setting> const& settings) {
  std::string text;
  auto const add = [&](std::string_view key, std::string_view value, std::string_view origin) {
    for (auto const part : {key, value, origin}) {
      text.append(part).push_back('\0');
    }
  };
  add("the program's version", fmt::format("{}, commit {}", version(), commit()),
      build_description());
  for (config::Setting const& setting : settings) {
    add(setting.key, setting.value, setting.origin);
  }
  return text;
}

std::string difference_from(std::string_view other, std::vector<config::Setting> const& settings) {
  std::string const own = text_for_ranks(settings);
  auto const mine = rows_of(own);
  auto const theirs = rows_of(other);
  auto const [here, there] = std::ranges::mismatch(mine, theirs, same);
  if (here == mine.end() && there == theirs.end()) {
    return {};
  }
  if (here == mine.end() || there == theirs.end() || here->key != there->key) {
    // A key that may be given several times, and was once more on one of the two.
    std::string_view const key = here != mine.begin() ? std::prev(here)->key : "a key";
    return fmt::format("{} has another number of values here than on rank 0", key);
  }
  return fmt::format("{} is {} here, but {} on rank 0{}", here->key, shown(*here), shown(*there),
                     here->key == path_key ? ", and only its directory may differ" : "");
}

void require_same_options(std::vector<config::Setting> const& settings,
                          mpi::Communicator const& comm) {
  std::string const of_first =
      comm.broadcast(comm.rank() == 0 ? text_for_ranks(settings) : std::string{}, 0);
  mpi::agree(comm, [&] {
    if (auto const difference = difference_from(of_first, settings); !difference.empty()) {
      throw UsageError{
          difference +
          ": all ranks must be told the same (was a file changed while the job started?)"};
    }
  });
}

}  // namespace offstage::cli
