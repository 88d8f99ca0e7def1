// What the benchmarks share that update without a model: their arguments and their layers.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"
#include "config/key_table.hpp"
#include "config/run_config.hpp"
#include "state/shard.hpp"

namespace offstage {

struct PhaseShape {
  std::int64_t parameters = 8'388'608;
  std::int64_t subgroup = 262'144;
  int steps = 3;
  Seconds pass{};  ///< of sleep in the place of forward or backward
  std::string trace;
};

/// KEY=VALUE in two.
inline std::pair<std::string, std::string> split_argument(std::string const& argument) {
  auto const equals = argument.find('=');
  require(equals != std::string::npos, "arguments are KEY=VALUE");
  return {argument.substr(0, equals), argument.substr(equals + 1)};
}

/// A key of the shape or of a run. Errors: UsageError.
inline void set(PhaseShape& shape, config::RunConfig& config, std::string const& key,
                std::string const& value) {
  if (key == "parameters") {
    shape.parameters = parse_count(value);
  } else if (key == "subgroup") {
    shape.subgroup = parse_count(value);
  } else if (key == "steps") {
    shape.steps = std::stoi(value);
  } else if (key == "pass-seconds") {
    shape.pass = Seconds{std::stod(value)};
  } else if (key == "run.trace") {
    shape.trace = value;
  } else if (auto const* const known = config::find_key(key)) {
    known->set(config, value);
  } else {
    throw UsageError{"unknown key " + key};
  }
}

/// Layers without structure.
inline std::vector<state::LayerLayout> make_layers(std::int64_t count, std::int64_t elements) {
  std::vector<state::LayerLayout> layers;
  for (std::int64_t i = 0; i < count; ++i) {
    state::LayerLayout layer;
    layer.name = fmt::format("layer {}", i);
    layer.decayed_elements = layer.elements = elements;
    layer.tensors.push_back(
        {.name = "weight", .rows = elements, .decayed = true, .initial = {}, .index = i});
    layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace offstage
