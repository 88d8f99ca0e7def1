#include "train/forecast/chosen.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <vector>

namespace offstage::train {

using parameters::Home;
using parameters::Sharding;

void leave_to_plan(config::RunConfig& config) {
  auto const is_open = [&](std::string_view key) { return !is_given(config.settings, key); };
  config.plan.choose = true;
  if (is_open("parameters.home")) {
    config.parameter_home = Home::device;
    config.home_is_open = true;
  }
  if (is_open("parameters.sharding")) {
    config.sharding = Sharding::zero3;
    config.sharding_is_open = true;
  }
  if (is_open("train.schedule")) {
    config.train.schedule = config::LayerSchedule::automatic;
  }
  if (is_open("train.activations")) {
    config.train.activations = {activations::Policy::Rule::automatic};
  }
  if (is_open("update.overlap")) {
    config.overlap = config::Switch::automatic;
  }
  if (is_open("update.device-share")) {
    config.share.device_share.reset();
  }
  if (is_open("update.device-resident")) {
    config.share.device_resident = 0.0;
    config.share.resident_is_open = true;
  }
  config.subgroup_is_open = is_open("update.subgroup-size");
  if (is_open("tiers.split-parameters")) {
    config.storage.split_parameters = config::Switch::automatic;
  }
}

void keep(config::RunConfig& config) {
  using Split = config::Switch;
  config.home_is_open = config.sharding_is_open = config.share.resident_is_open = false;
  config.subgroup_is_open = false;
  config.storage.split_parameters = config.optimizer.split_parameter ? Split::on : Split::off;
}

bool leaves_home(config::RunConfig const& config) {
  return config.home_is_open;
}
bool leaves_sharding(config::RunConfig const& config) {
  return config.sharding_is_open;
}
bool leaves_schedule(config::RunConfig const& config) {
  return config.train.schedule == config::LayerSchedule::automatic;
}
bool leaves_activations(config::RunConfig const& config) {
  return config.train.activations.rule == activations::Policy::Rule::automatic;
}
bool leaves_overlap(config::RunConfig const& config) {
  return config.overlap == config::Switch::automatic;
}
bool leaves_share(config::RunConfig const& config) {
  return !config.share.device_share.has_value();
}
bool leaves_resident(config::RunConfig const& config) {
  return config.share.resident_is_open;
}

bool leaves_subgroup(config::RunConfig const& config) {
  return config.subgroup_is_open;
}
bool leaves_split(config::RunConfig const& config) {
  return config.storage.split_parameters == config::Switch::automatic;
}

std::string text_of(Home home) {
  return parameters::name_of(home);
}
std::string text_of(Sharding sharding) {
  return parameters::name_of(sharding);
}
std::string text_of(config::LayerSchedule schedule) {
  return schedule == config::LayerSchedule::vertical ? "vertical" : "horizontal";
}
std::string text_of(config::Switch value) {
  return value == config::Switch::off ? "off" : (value == config::Switch::on ? "on" : "auto");
}

std::string text_of(activations::Policy const& policy) {
  return activations::describe(policy);
}
std::string text_of(double share) {
  return fmt::format("{:.2f}", share);
}

void take(config::RunConfig& config, Chosen const& chosen) {
  if (leaves_home(config)) {
    config.parameter_home = chosen.home;
    config.home_is_open = false;
  }
  if (leaves_sharding(config)) {
    config.sharding = chosen.sharding;
    config.sharding_is_open = false;
  }
  if (leaves_schedule(config)) {
    config.train.schedule = chosen.schedule;
  }
  if (leaves_activations(config)) {
    config.train.activations = chosen.activations;
  }
  if (leaves_overlap(config)) {
    config.overlap = chosen.overlap;
  }
  if (leaves_share(config)) {
    config.share.device_share = chosen.share;
  }
  if (leaves_resident(config)) {
    config.share.device_resident = chosen.resident;
    config.share.resident_is_open = false;
  }
  if (leaves_subgroup(config)) {
    config.subgroup_size = chosen.subgroup > 0 ? chosen.subgroup : config.subgroup_size;
    config.subgroup_is_open = false;
  }
  if (leaves_split(config)) {
    config.storage.split_parameters = chosen.split;
  }
}

std::string describe(Chosen const& chosen, config::RunConfig const& config) {
  std::vector<std::string> words;
  if (leaves_home(config)) {
    words.push_back(fmt::format("parameters.home={}", text_of(chosen.home)));
  }
  if (leaves_sharding(config) && chosen.sharding != Sharding::zero3) {
    words.push_back(fmt::format("parameters.sharding={}", text_of(chosen.sharding)));
  }
  if (leaves_schedule(config)) {
    words.push_back(fmt::format("train.schedule={}", text_of(chosen.schedule)));
  }
  if (leaves_activations(config)) {
    words.push_back(fmt::format("train.activations={}", activations::describe(chosen.activations)));
  }
  if (leaves_overlap(config)) {
    words.push_back(fmt::format("update.overlap={}", text_of(chosen.overlap)));
  }
  if (leaves_share(config)) {
    words.push_back(fmt::format("update.device-share={:.3f}", chosen.share));
  }
  if (leaves_resident(config)) {
    words.push_back(fmt::format("update.device-resident={:.2f}", chosen.resident));
  }
  if (leaves_subgroup(config) && chosen.subgroup > 0) {
    words.push_back(fmt::format("update.subgroup-size={}", chosen.subgroup));
  }
  if (leaves_split(config) && chosen.split != config::Switch::automatic) {
    words.push_back(fmt::format("tiers.split-parameters={}", text_of(chosen.split)));
  }
  return words.empty() ? "all keys are given" : fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace offstage::train
