#include "probe/figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/quoted.hpp"
#include "probe/median.hpp"

namespace offstage::probe {
namespace {

enum class Unit { bytes, elements, flops };

struct Kind {
  std::string_view name;
  std::string_view key;
  Unit unit;
};

/// Indexed by Figure.
constexpr std::array<Kind, figure_count> kinds{{
    {"host to device, pinned", "host-to-device", Unit::bytes},
    {"device to host, pinned", "device-to-host", Unit::bytes},
    {"  host to device, both ways at once", "host-to-device-both", Unit::bytes},
    {"  device to host, both ways at once", "device-to-host-both", Unit::bytes},
    {"host to device, pageable", "", Unit::bytes},
    {"device to host, pageable", "", Unit::bytes},
    {"AdamW on the cores, parameters", "cpu-update", Unit::elements},
    {"AdamW on the device, parameters", "device-update", Unit::elements},
    {"host memory, read and written", "host-memory", Unit::bytes},
    {"matrix product on the device", "products", Unit::flops},
    {"forward of a block on the device", "block-forward", Unit::flops},
    {"backward of a block on the device", "block-backward", Unit::flops},
    {"gradients added, read and written", "host-sum", Unit::bytes},
    {"layers from the other ranks", "rank-link", Unit::bytes},
}};

/// Below this share of the median a rank is worth a look.
constexpr double outlier_share = 0.8;
/// Ranks that differ by less are alike.
constexpr double alike_share = 0.95;

Kind const& kind_of(std::size_t figure) {
  return kinds.at(figure);
}

struct Scaled {
  double value;
  char const* prefix;
};
Scaled scaled(double value) {
  for (auto const& [factor, prefix] : {std::pair{1e12, "T"}, std::pair{1e9, "G"}}) {
    if (value >= factor) {
      return {value / factor, prefix};
    }
  }
  return value >= 1e6 ? Scaled{value / 1e6, "M"} : Scaled{value / 1e3, "k"};
}

/// Three significant figures, without an exponent.
std::string three(double value) {
  int const decimals = value < 9.995 ? 2 : (value < 99.95 ? 1 : 0);
  return fmt::format("{:.{}f}", value, decimals);
}

std::vector<double> column(std::vector<Figures> const& all, std::size_t figure) {
  std::vector<double> values;
  values.reserve(all.size());
  for (Figures const& each : all) {
    values.push_back(each.at(figure));
  }
  return values;
}

/// "25.1 GB/s, least 24.0 GB/s": the median, and the least if it is much less; empty where nothing
/// was measured.
std::string summary(Figure figure, std::vector<double> const& values) {
  if (std::ranges::all_of(values, [](double value) { return value == 0.0; })) {
    return {};
  }
  double const middle = median(values);
  double const least = *std::ranges::min_element(values);
  auto text = format(figure, middle);
  if (least < alike_share * middle) {
    text += fmt::format(", least {}", format(figure, least));
  }
  return text;
}

void add_outliers(std::vector<std::string>& lines, Measured const& measured,
                  std::vector<Figures> const& all, char const* how) {
  for (std::size_t figure = 0; figure < figure_count; ++figure) {
    auto const values = column(all, figure);
    double const middle = values.empty() ? 0.0 : median(values);
    for (std::size_t rank = 0; rank < values.size(); ++rank) {
      if (values[rank] < outlier_share * middle) {
        lines.push_back(fmt::format(
            "rank {} on {} is slow{}: {} {}, the median is {}", rank, measured.hosts.at(rank), how,
            kind_of(figure).name.substr(kind_of(figure).name.find_first_not_of(' ')),
            format(static_cast<Figure>(figure), values[rank]),
            format(static_cast<Figure>(figure), middle)));
      }
    }
  }
}

using Direction = double plan::PathRate::*;

std::vector<double> by_node(ProbedPath const& path, Direction direction) {
  std::vector<double> values;
  values.reserve(path.rates.size());
  for (plan::PathRate const& rate : path.rates) {
    values.push_back(rate.*direction);
  }
  return values;
}

std::string directory_of(ProbedPath const& path) {
  return path.text.substr(0, path.text.find(','));
}

/// `1.93G`, as a key of parameters takes it; a rate of bytes has `B/s` behind.
std::string for_config(Unit unit, double value) {
  auto const [number, prefix] = scaled(value);
  if (unit != Unit::bytes) {
    // A count has no T.
    return value >= 1e12 ? fmt::format("{:.0f}G", value / 1e9)
                         : fmt::format("{}{}", three(number), prefix);
  }
  return fmt::format("{}{}B/s", three(number), prefix);
}

/// The path with its directory made absolute and the rates that were measured.
std::string for_config(ProbedPath const& path) {
  std::string text = std::filesystem::absolute(directory_of(path)).lexically_normal().string();
  std::string_view rest = path.text;
  for (auto comma = rest.find(','); comma != std::string_view::npos; comma = rest.find(',')) {
    rest.remove_prefix(comma + 1);
    auto const attribute = rest.substr(0, rest.find(','));
    if (!attribute.starts_with("read=") && !attribute.starts_with("write=")) {
      text += fmt::format(",{}", attribute);
    }
  }
  return fmt::format("{},read={},write={}", text,
                     for_config(Unit::bytes, median(by_node(path, &plan::PathRate::read))),
                     for_config(Unit::bytes, median(by_node(path, &plan::PathRate::write))));
}

}  // namespace

std::string_view name_of(Figure figure) {
  return kind_of(static_cast<std::size_t>(figure)).name;
}

std::string_view key_of(Figure figure) {
  return kind_of(static_cast<std::size_t>(figure)).key;
}

std::string format(Figure figure, double value) {
  auto const [number, prefix] = scaled(value);
  switch (kind_of(static_cast<std::size_t>(figure)).unit) {
    case Unit::bytes:
      return fmt::format("{} {}B/s", three(number), prefix);
    case Unit::elements:
      return fmt::format("{} {}/s", three(number), prefix);
    case Unit::flops:
      break;
  }
  return fmt::format("{} {}FLOP/s", three(number), prefix);
}

std::vector<std::string> table(Measured const& measured) {
  bool const several = !measured.together.empty();
  std::vector<std::string> lines{
      fmt::format("{:<37}  {}", several ? "per rank, median" : "",
                  several ? fmt::format("{:<33}  all together", "alone on its node") : "measured")};
  for (std::size_t i = 0; i < figure_count; ++i) {
    auto const figure = static_cast<Figure>(i);
    auto const text = summary(figure, column(measured.alone, i));
    auto const of_all = summary(figure, column(measured.together, i));
    if (text.empty() && of_all.empty()) {
      continue;
    }
    lines.push_back(several ? fmt::format("{:<37}  {:<33}  {}", name_of(figure),
                                          text.empty() ? "-" : text, of_all)
                            : fmt::format("{:<37}  {}", name_of(figure), text));
  }
  return lines;
}

std::vector<std::string> outliers(Measured const& measured) {
  std::vector<std::string> lines;
  add_outliers(lines, measured, measured.alone, measured.together.empty() ? "" : " when alone");
  add_outliers(lines, measured, measured.together, " when all run");
  return lines;
}

std::vector<std::string> table(std::span<ProbedPath const> paths) {
  std::vector<std::string> lines;
  for (ProbedPath const& path : paths) {
    lines.push_back(fmt::format("{:<37}  read {}, write {}", directory_of(path),
                                summary(Figure::to_device, by_node(path, &plan::PathRate::read)),
                                summary(Figure::to_device, by_node(path, &plan::PathRate::write))));
  }
  return lines;
}

std::vector<std::string> outliers(std::span<ProbedPath const> paths) {
  std::vector<std::string> lines;
  for (ProbedPath const& path : paths) {
    for (auto const& [direction, name] :
         {std::pair<Direction, char const*>{&plan::PathRate::read, "reads"},
          {&plan::PathRate::write, "writes"}}) {
      auto const values = by_node(path, direction);
      double const middle = median(values);
      for (std::size_t node = 0; node < values.size(); ++node) {
        if (values[node] < outlier_share * middle) {
          lines.push_back(fmt::format("{} is slow: {} {} {}, the median of the nodes is {}",
                                      path.hosts.at(node), name, directory_of(path),
                                      format(Figure::to_device, values[node]),
                                      format(Figure::to_device, middle)));
        }
      }
    }
  }
  return lines;
}

std::string platform_config(Measured const& measured, std::span<ProbedPath const> paths,
                            Occasion const& occasion) {
  auto const& counted = measured.together.empty() ? measured.alone : measured.together;
  std::string const where =
      occasion.nodes == 1
          ? measured.hosts.front()
          : fmt::format("{} and {} more", measured.hosts.front(), occasion.nodes - 1);
  std::string text = fmt::format(
      "# Measured by offstage probe {} on {}: {} rank{} on {} node{}, {} thread{} each, device "
      "{}{}.\n# Per rank, while all ranks measured the same.\n",
      occasion.version, occasion.date, counted.size(), counted.size() == 1 ? "" : "s",
      occasion.nodes, occasion.nodes == 1 ? "" : "s", occasion.threads,
      occasion.threads == 1 ? "" : "s", occasion.device,
      occasion.emulation.empty() ? "" : fmt::format(" as {}", occasion.emulation));
  text += fmt::format("[platform]\nmeasured = {} on {}\n", occasion.date, where);
  for (std::size_t i = 0; i < figure_count; ++i) {
    auto const figure = static_cast<Figure>(i);
    double const value = median(column(counted, i));
    if (!key_of(figure).empty() && value > 0.0) {
      text += fmt::format("{} = {}\n", key_of(figure), for_config(kind_of(i).unit, value));
    }
  }
  if (occasion.on_host) {
    text += "\n[device]\nkind = host\n";
    text +=
        occasion.emulation.empty() ? "" : fmt::format("emulate = {}\n", quoted(occasion.emulation));
  }
  if (!paths.empty()) {
    text += "\n[tiers]\n";
  }
  for (ProbedPath const& path : paths) {
    text += fmt::format("path = {}\n", quoted(for_config(path)));
  }
  return text;
}

}  // namespace offstage::probe
