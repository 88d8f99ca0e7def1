#include "tiers/tiers.hpp"

namespace offstage::tiers {

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
