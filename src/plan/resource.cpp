#include "plan/resource.hpp"

namespace offstage::plan {

std::string_view words_of(Resource::Kind kind) {
  using enum Resource::Kind;
  switch (kind) {
    case device:
      return "the device";
    case device_update:
      return "updates on the device";
    case cpu_update:
      return "updates on the cores";
    case sums:
      return "sums of gradients";
    case rank_link:
      return "the link between ranks";
    case to_device:
      return "the link to the device";
    case to_host:
      return "the link from the device";
    case path:
      return "";
    case path_reads:
      return ", reading";
    case path_writes:
      return ", writing";
    case storage:
      return "storage";
    case host_memory:
      return "host memory";
  }
  return {};
}

}  // namespace offstage::plan
