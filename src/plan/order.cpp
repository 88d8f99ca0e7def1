#include "plan/order.hpp"

#include <algorithm>
#include <numeric>

namespace offstage::plan {

std::vector<std::int64_t> update_order(UpdateOrder order, std::int64_t step,
                                       std::vector<bool> const& in_memory, bool spread) {
  std::vector<std::int64_t> all(in_memory.size());
  std::iota(all.begin(), all.end(), std::int64_t{0});
  if (order == UpdateOrder::alternate && step % 2 != 0) {
    std::ranges::reverse(all);
  }
  if (!spread) {
    return all;
  }
  std::vector<std::int64_t> near, far;
  for (std::int64_t const index : all) {
    (in_memory[static_cast<std::size_t>(index)] ? near : far).push_back(index);
  }
  std::vector<std::int64_t> mixed;
  mixed.reserve(all.size());
  // The k-th subgroup in memory has position k * all / near, so that the first is at the front.
  for (std::size_t taken = 0; mixed.size() < all.size();) {
    bool const take_near = taken < near.size() && mixed.size() >= taken * all.size() / near.size();
    mixed.push_back(take_near ? near[taken] : far[mixed.size() - taken]);
    taken += take_near ? 1 : 0;
  }
  return mixed;
}

}  // namespace offstage::plan
