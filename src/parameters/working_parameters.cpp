#include "parameters/working_parameters.hpp"

#include <algorithm>
#include <variant>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "kernels/optimizer/working_copy.hpp"

namespace offstage::parameters {
namespace {

/// Number of parameters that are converted at once on their way to the device.
constexpr std::size_t converted_at_once = std::size_t{1} << 20U;

void require_fit(state::Subgroup const& subgroup, std::span<float const> parameters) {
  require(std::ssize(parameters) == subgroup.size,
          "WorkingParameters: one value for each of the subgroup's elements");
}

}  // namespace

template <class T>
void WorkingParameters<T>::fill(state::Subgroup const& subgroup,
                                std::span<float const> parameters) {
  require_fit(subgroup, parameters);
  auto place = target(subgroup);
  kernels::host::round_parameters(parameters, std::get<std::span<T>>(place.view));
  if (place.lease.is_held()) {
    place.lease.commit();
  }
}

template <class T>
Target DeviceParameters<T>::target(state::Subgroup const& subgroup) {
  auto const shard = copy_.shard();
  require(subgroup.begin + subgroup.size <= std::ssize(shard),
          "DeviceParameters: the subgroup is not of this shard");
  return {shard.subspan(static_cast<std::size_t>(subgroup.begin),
                        static_cast<std::size_t>(subgroup.size))};
}

template <class T>
void DeviceParameters<T>::fill(state::Subgroup const& subgroup, std::span<float const> parameters) {
  require_fit(subgroup, parameters);
  std::vector<T> converted;
  for (std::size_t done = 0; done < parameters.size(); done += converted.size()) {
    converted.resize(std::min(converted_at_once, parameters.size() - done));
    kernels::host::round_parameters(parameters.subspan(done, converted.size()),
                                    std::span<T>{converted});
    copy_.write(subgroup.begin + static_cast<std::int64_t>(done), converted);
  }
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_RUN_TYPES, WorkingParameters)
OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_RUN_TYPES, DeviceParameters)
OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_RUN_TYPES, HostParameters)

}  // namespace offstage::parameters
