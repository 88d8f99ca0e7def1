#include "activations/choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "model/block.hpp"

namespace offstage::activations {
namespace {

using model::Fate;
using model::Part;

/// What a block's parts take that products make, those first that are most worth a swap.
struct Item {
  Part part{};
  plan::SwapItem cost;
};

template <class T>
std::array<Item, product_parts> items_of(model::Dims const& dims) {
  std::array<Item, product_parts> items;
  std::ranges::transform(
      std::array{Part::qkv, Part::mid, Part::up, Part::attention}, items.begin(), [&](Part part) {
        return Item{
            part,
            {.flops = model::part_flops(dims, part), .bytes = model::part_bytes<T>(dims, part)}};
      });
  std::ranges::stable_sort(items, std::ranges::greater{}, [](Item const& item) {
    return item.cost.flops / static_cast<double>(item.cost.bytes);
  });
  return items;
}

double forward_flops(model::Dims const& dims, int blocks) {
  auto const block = model::block_flops(dims);
  double const head = 2.0 * static_cast<double>(dims.rows()) * static_cast<double>(dims.V * dims.C);
  return blocks * (block.linear + block.attention) / 3 + head;
}

plan::SwapDemand demand_of(Rates const& rates, plan::SwapCompany const& company,
                           model::Dims const& dims, int blocks) {
  return {.forward_flops = forward_flops(dims, blocks),
          .company = company,
          .compute = rates.compute,
          .host_to_device = rates.host_to_device,
          .device_to_host = rates.device_to_host,
          .storage = rates.storage};
}

}  // namespace

template <class T>
std::vector<model::BlockFates> block_fates(Policy const& policy, model::Dims const& dims,
                                           int blocks) {
  auto const count = static_cast<std::size_t>(blocks);
  switch (policy.rule) {
    case Policy::Rule::automatic:
    case Policy::Rule::keep:
      return {count, model::kept_block};
    case Policy::Rule::recompute:
      return {count, model::recomputed_block};
    case Policy::Rule::part:
    case Policy::Rule::swap:
      break;
  }
  Fate const chosen = policy.rule == Policy::Rule::part ? Fate::keep : Fate::leave;
  std::vector<model::BlockFates> fates(count, {chosen, Fate::recompute, Fate::recompute});
  auto const items = items_of<T>(dims);
  double const all =
      std::accumulate(items.begin(), items.end(), 0.0, [&](double sum, Item const& item) {
        return sum + static_cast<double>(item.cost.bytes) * blocks;
      });
  double left = policy.share * all;
  for (auto const& [part, cost] : items) {
    auto const bytes = static_cast<double>(cost.bytes);
    auto const number = std::min<std::int64_t>(blocks, std::llround(left / bytes));
    for (std::int64_t block = 0; block < blocks; ++block) {
      // As many of the first blocks as their share of all.
      bool const is_chosen = (block + 1) * number / blocks > block * number / blocks;
      fates[static_cast<std::size_t>(block)][part] = is_chosen ? chosen : Fate::recompute;
    }
    left = std::max(0.0, left - static_cast<double>(number) * bytes);
  }
  return fates;
}

template <class T>
PaperChoice paper_choice(Rates const& rates, plan::SwapCompany const& company,
                         model::Dims const& dims, BlockCount blocks, int parts) {
  int const moving = std::max(0, blocks.all - blocks.staying);
  std::vector<plan::SwapItem> all;
  for (Item const& item : items_of<T>(dims)) {
    all.insert(all.end(), static_cast<std::size_t>(moving), item.cost);
  }
  auto demand = demand_of(rates, company, dims, blocks.all);
  demand.always = moving * model::part_bytes<T>(dims, Part::input);
  auto const count = plan::best_swap(demand, all, static_cast<std::size_t>(parts * moving));
  Bytes bytes = 0;
  Bytes swapped = 0;
  double recomputed = 0.0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    bytes += all[i].bytes;
    swapped += i < count ? all[i].bytes : 0;
    recomputed += i < count ? 0.0 : all[i].flops;
  }
  return {.share = bytes > 0 ? static_cast<double>(swapped) / static_cast<double>(bytes) : 0.0,
          .seconds = plan::swap_times(demand, swapped, recomputed).total()};
}

template <class T>
double share_of_parts(model::Dims const& dims, int parts) {
  double some = 0.0;
  double all = 0.0;
  for (auto const& [part, cost] : items_of<T>(dims)) {
    some += parts-- > 0 ? static_cast<double>(cost.bytes) : 0.0;
    all += static_cast<double>(cost.bytes);
  }
  return some / all;
}

template <class T>
Seconds recompute_seconds(Rates const& rates, plan::SwapCompany const& company,
                          model::Dims const& dims, BlockCount blocks, Policy const& policy) {
  auto const fates = block_fates<T>(policy, dims, blocks.all);
  double recomputed = 0.0;
  for (int block = 0; block < blocks.all - blocks.staying; ++block) {
    for (Part const part : model::all_parts) {
      bool const stays = fates[static_cast<std::size_t>(block)][part] == Fate::keep;
      recomputed += stays ? 0.0 : model::part_flops(dims, part);
    }
  }
  return plan::swap_times(demand_of(rates, company, dims, blocks.all), 0, recomputed).total();
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, block_fates)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, paper_choice)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, share_of_parts)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, recompute_seconds)

}  // namespace offstage::activations
