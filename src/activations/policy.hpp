#pragma once

#include <cstdint>
#include <string>

namespace offstage::activations {

/// train.activations: what becomes of the blocks' activations between forward and backward. No bit
/// depends on it.
struct Policy {
  enum class Rule : std::uint8_t {
    automatic,  ///< one of the others, by what the device has room for
    keep,       ///< all stay on the device
    part,       ///< the inputs and `share` of what products make stay; the rest is computed again
    recompute,  ///< the blocks' inputs stay, the rest is computed again
    swap        ///< the inputs leave, and `share` of what products make; the rest is computed again
  };
  Rule rule = Rule::automatic;
  double share = 1.0;  ///< share of the bytes, in [0, 1] (of `swap` Fuyou's swap coefficient)
  /// Parts that leave go to the storage paths as far as host memory has no room.
  bool storage = false;

  [[nodiscard]] bool operator==(Policy const&) const = default;
};

/// "auto", "keep", "keep:" and a number, "recompute", "host", a number, "storage" or "storage:" and
/// a number, as parse_policy takes them.
[[nodiscard]] std::string describe(Policy const& policy);
/// Errors: UsageError, without the key's name.
[[nodiscard]] Policy parse_policy(std::string const& text);

}  // namespace offstage::activations
