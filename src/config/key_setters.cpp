#include "config/key_setters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/chunk.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "base/units.hpp"
#include "config/key_values.hpp"
#include "config/optimizer_kinds.hpp"
#include "data/held_out.hpp"
#include "tiers/path_settings.hpp"

namespace offstage::config {
namespace {

Interval parse_interval(std::string const& text) {
  auto const is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text == "auto") {
    return {.automatic = true};
  }
  bool const in_thousands = text.find_last_of("kKMG") == text.size() - 1;
  bool const is_negative = text.starts_with('-');
  if (!text.empty() && !is_negative && (std::ranges::all_of(text, is_digit) || in_thousands)) {
    return {.steps = whole<std::int64_t>(text)};
  }
  // A number without a unit must not pass as seconds: 1.5 may have meant thousands of steps.
  bool const has_unit = text.find_first_of(":smhd") != std::string::npos;
  Seconds const time = has_unit && !is_negative ? parse_duration(text) : Seconds{};
  if (time <= Seconds{}) {
    throw UsageError{fmt::format(
        "'{}' is neither steps nor a duration; write for example 50, 30min, auto, or 0 for the end "
        "alone",
        text)};
  }
  return {.time = time};
}

}  // namespace

void set_checkpoint_every(RunConfig& config, std::string const& text) {
  config.checkpoint.every = parse_interval(text);
}

void set_local_every(RunConfig& config, std::string const& text) {
  config.checkpoint.local_every = parse_interval(text);
  if (config.checkpoint.local_every == Interval{}) {
    throw UsageError{"'0' saves nothing on node storage; leave checkpoint.local out instead"};
  }
}

void set_checkpoint_rate(RunConfig& config, std::string const& text) {
  config.checkpoint.rate = config.checkpoint.rate_part = 0.0;
  if (text.ends_with('%')) {
    double const percent = real(text.substr(0, text.size() - 1));
    if (percent <= 0.0 || percent > 100.0) {
      throw UsageError{fmt::format(
          "'{}' is no share; write more than 0% and at most 100%, as in 20%, or a rate, as in "
          "500MB/s",
          text)};
    }
    config.checkpoint.rate_part = percent / 100.0;
  } else if (text != "0") {
    config.checkpoint.rate = bytes_rate(text);
  }
}

void set_host_memory(RunConfig& config, std::string const& text) {
  config.host_memory = text == "auto" ? 0 : parse_bytes(text);
  if (config.host_memory == 0 && text != "auto") {
    throw UsageError{"'0' is no limit to work with; write auto or a size"};
  }
}

void add_path(RunConfig& config, std::string const& text) {
  if (text.empty()) {
    config.paths.clear();
  } else {
    config.paths.push_back(tiers::parse_path(text));
  }
}

void set_optimizer_kind(RunConfig& config, std::string const& text) {
  std::vector<std::pair<std::string_view, kernels::Optimizer>> words;
  for (OptimizerKind const& kind : optimizer_kinds) {
    words.emplace_back(kernels::name_of(kind.optimizer), kind.optimizer);
  }
  config.optimizer.kind = choice(text, words);
}

std::string default_ffn_hidden(RunConfig const& config) {
  if (config.model.family == state::Family::gpt2) {
    return std::to_string(4 * config.model.hidden);
  }
  return std::to_string(round_up(ceil_div(config.model.hidden * 8, 3), 64));
}

std::string default_head_dim(RunConfig const& config) {
  auto const& [hidden, heads] = std::pair{config.model.hidden, config.model.heads};
  return std::to_string(heads > 0 && hidden % heads == 0 ? hidden / heads : 0);
}

std::string default_attention_factor(RunConfig const& config) {
  bool const yarn = config.model.rope_scaling == state::RopeScaling::yarn;
  return fmt::format("{}", yarn ? state::yarn_attention_factor(config.model.rope_factor) : 1.0);
}

std::vector<Skip> parse_skips(std::string const& text) {
  std::vector<Skip> skips;
  for (std::string_view rest = text; !rest.empty();) {
    auto const part = take_until(',', rest);
    auto const colon = part.find(':');
    if (colon == std::string_view::npos) {
      throw UsageError{fmt::format(
          "'{}' is no STEP:SEQUENCES; write for example 4000:51200, for so many behind that step",
          part)};
    }
    Skip const skip{whole<std::int64_t>(std::string{part.substr(0, colon)}),
                    whole<std::int64_t>(std::string{part.substr(colon + 1)})};
    auto const before = skips.empty() ? -1 : skips.back().step;
    if (skip.step <= before || skip.sequences < 1) {
      throw UsageError{fmt::format(
          "'{}': steps are 0 or more and ascend, and 1 sequence at least is left out", part)};
    }
    skips.push_back(skip);
  }
  return skips;
}

void set_validation_files(RunConfig& config, std::string const& text) {
  config.data.valid.clear();
  auto const held_out = data::parse_held_out(text);
  config.data.held_out = held_out.value_or(0.0);
  if (held_out) {
    for (data::Source const& source : config.data.train) {  // a key before this one
      auto& valid = config.data.valid;
      if (std::ranges::find(valid, source.path, &data::Source::path) == valid.end()) {
        valid.push_back({source.path});
      }
    }
  } else if (!text.empty()) {
    config.data.valid = data::parse_sources_in_turn(text);
    for (data::Source const& source : config.data.valid) {
      if (data::parse_held_out(source.path)) {
        throw UsageError{
            fmt::format("'{}' stands beside files; it is for itself alone, or leave it "
                        "out",
                        source.path)};
      }
    }
  }
}

void set_steps(RunConfig& config, std::string const& text) {
  config.train.steps = 0;
  config.train.epochs = 0.0;
  constexpr std::string_view unit = "epoch";
  auto const place = text.find(unit);
  if (place == std::string::npos) {
    config.train.steps = whole<std::int64_t>(text);
    return;
  }
  constexpr double most = 1e4;  // so that the sequences of all epochs can be counted
  auto const rest = std::string_view{text}.substr(place + unit.size());
  auto const count = number_in<double>(trimmed(std::string_view{text}.substr(0, place)));
  if ((!rest.empty() && rest != "s") || !count || !(*count > 0.0 && *count <= most)) {
    throw UsageError{
        fmt::format("'{}' is no length; write for example 3epochs or 0.5epochs, more than 0 and at "
                    "most 10000, or a number of steps",
                    text)};
  }
  config.train.epochs = *count;
}

void set_device_share(RunConfig& config, std::string const& text) {
  config.share.device_share.reset();
  if (text != "auto") {
    config.share.device_share = real(text);
  }
}

void set_device_resident(RunConfig& config, std::string const& text) {
  config.share.resident_is_open = text == "auto";
  config.share.device_resident = text == "auto" ? 0.0 : real(text);
}

void set_parameter_home(RunConfig& config, std::string const& text) {
  using parameters::Home;
  config.home_is_open = text == "auto";
  config.parameter_home = choice<Home>(text, {{"device", Home::device},
                                              {"host", Home::host},
                                              {"storage", Home::storage},
                                              {"node", Home::node},
                                              {"auto", Home::device}});
}

void set_parameter_sharding(RunConfig& config, std::string const& text) {
  using parameters::Sharding;
  config.sharding_is_open = text == "auto";
  config.sharding = choice<Sharding>(text, {{"auto", Sharding::zero3},
                                            {"zero3", Sharding::zero3},
                                            {"zero2", Sharding::zero2},
                                            {"zero1", Sharding::zero1}});
}

void set_device_chunk(RunConfig& config, std::string const& text) {
  constexpr std::int64_t most = 1'000'000'000;  // so that no product of its bytes overflows
  std::int64_t const count = parse_count(text);
  if (count < 1 || count > most) {
    throw UsageError{fmt::format("'{}' must be from 1 to 1G parameters", text)};
  }
  config.share.device_chunk =
      std::max<std::int64_t>(chunk_elements, count / chunk_elements * chunk_elements);
}

void set_device_gradients(RunConfig& config, std::string const& text) {
  config.share.device_gradients.reset();
  if (text != "auto") {
    config.share.device_gradients = parse_bytes(text);
  }
}

void set_loss_scale(RunConfig& config, std::string const& text) {
  auto& rules = config.numerics.loss_scale;
  rules.dynamic = text == "dynamic";
  if (!rules.dynamic) {
    rules.start = real(text);
  }
}

}  // namespace offstage::config
