#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tiers/lease.hpp"

namespace offstage::tiers {

/// What the i-th word of a key's version holds in tests: no two are the same.
inline std::uint64_t word(Key key, int version, std::size_t i) {
  return (static_cast<std::uint64_t>(key) << 48U) + (static_cast<std::uint64_t>(version) << 20U) +
         i;
}

inline void write(Lease& lease, int version) {
  auto const bytes = lease.mutable_bytes();
  std::span const out{reinterpret_cast<std::uint64_t*>(bytes.data()),
                      bytes.size() / sizeof(std::uint64_t)};
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = word(lease.key(), version, i);
  }
}

inline bool holds(Lease const& lease, int version) {
  std::span const in{reinterpret_cast<std::uint64_t const*>(lease.bytes().data()),
                     lease.bytes().size() / sizeof(std::uint64_t)};
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (in[i] != word(lease.key(), version, i)) {
      return false;
    }
  }
  return true;
}

}  // namespace offstage::tiers
