#include "activations/policy.hpp"

#include <fmt/format.h>

#include <string_view>

#include "base/error.hpp"
#include "base/text.hpp"

namespace offstage::activations {

namespace {

constexpr std::string_view keep_prefix = "keep:";
constexpr std::string_view storage_prefix = "storage:";

}  // namespace

std::string describe(Policy const& policy) {
  switch (policy.rule) {
    case Policy::Rule::automatic:
      return "auto";
    case Policy::Rule::keep:
      return "keep";
    case Policy::Rule::part:
      return fmt::format("{}{:.3g}", keep_prefix, policy.share);
    case Policy::Rule::recompute:
      return "recompute";
    case Policy::Rule::swap:
      break;
  }
  if (policy.share == 1.0) {
    return policy.storage ? "storage" : "host";
  }
  return fmt::format("{}{:.3g}", policy.storage ? storage_prefix : "", policy.share);
}

Policy parse_policy(std::string const& text) {
  using Rule = Policy::Rule;
  for (Policy const& named : {Policy{Rule::automatic}, Policy{Rule::keep}, Policy{Rule::recompute},
                              Policy{Rule::swap}, Policy{Rule::swap, 1.0, true}}) {
    if (text == describe(named)) {
      return named;
    }
  }
  bool const storage = text.starts_with(storage_prefix);
  bool const part = text.starts_with(keep_prefix);
  auto const number = std::string_view{text}.substr(storage ? storage_prefix.size()
                                                    : part  ? keep_prefix.size()
                                                            : 0);
  auto const share = number_in<double>(number);
  if (!share || !(*share >= 0.0 && *share <= 1.0)) {
    throw UsageError{fmt::format(
        "'{}' is none of auto, keep, keep:X, recompute, host, storage, X and storage:X, where X is "
        "a share from 0 to 1",
        text)};
  }
  return {part ? Rule::part : Rule::swap, *share, storage};
}

}  // namespace offstage::activations
