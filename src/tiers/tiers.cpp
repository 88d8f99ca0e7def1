#include "tiers/tiers.hpp"

#include "base/error.hpp"

namespace offstage::tiers {

void Tiers::read_held(Key /*key*/, std::span<std::byte> /*memory*/, TakePiece const& /*take*/,
                      LetsPass const& /*lets_pass*/) {
  throw PreconditionError{"Tiers: no version is held"};
}

Bytes Traffic::read_bytes() const {
  Bytes sum = 0;
  for (PathTraffic const& path : paths) {
    sum += path.read.bytes;
  }
  return sum;
}

Bytes Traffic::write_bytes() const {
  Bytes sum = 0;
  for (PathTraffic const& path : paths) {
    sum += path.write.bytes;
  }
  return sum;
}

}  // namespace offstage::tiers
