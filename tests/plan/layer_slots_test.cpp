#include "plan/layer_slots.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/error.hpp"

namespace offstage::plan {
namespace {

std::vector<LayerSlots::Use> uses_of(LayerSlots& schedule, std::vector<int> const& layers) {
  std::vector<LayerSlots::Use> uses;
  for (int const layer : layers) {
    uses.push_back(schedule.add(layer));
  }
  return uses;
}

std::vector<int> filled(std::vector<LayerSlots::Use> const& uses) {
  std::vector<int> layers;
  for (auto const& use : uses) {
    if (use.fill) {
      layers.push_back(use.layer);
    }
  }
  return layers;
}

TEST(LayerSlots, FillsRoundAndRoundEachSlotAfterItsLastUse) {
  LayerSlots schedule{3};
  auto const uses = uses_of(schedule, {0, 1, 2, 3, 4});
  EXPECT_EQ(filled(uses), (std::vector{0, 1, 2, 3, 4}));
  EXPECT_EQ(uses[2].after, -1);
  EXPECT_EQ(uses[3].after, 0);
  EXPECT_EQ(uses[3].slot, uses[0].slot);
  EXPECT_EQ(uses[4].after, 1);
}

TEST(LayerSlots, BackwardBeginsWithTheLayersThatForwardLeft) {
  LayerSlots schedule{3};
  auto const uses = uses_of(schedule, {0, 1, 2, 3, 4, 4, 3, 2, 1});
  EXPECT_EQ(filled(uses), (std::vector{0, 1, 2, 3, 4, 1}));
  EXPECT_EQ(uses.back().after, 5) << "the head's slot is free first";
}

TEST(LayerSlots, TwoSlotsAreEnoughForATiedHead) {
  LayerSlots schedule{2};
  auto const uses = uses_of(schedule, {0, 1, 2, 0, 2, 0, 1});
  EXPECT_EQ(filled(uses), (std::vector{0, 1, 2, 0, 1}));
  EXPECT_NE(uses[2].slot, uses[3].slot);
  EXPECT_NE(uses[4].slot, uses[5].slot);
}

TEST(LayerSlots, AfterForgettingEveryLayerIsBroughtAgain) {
  LayerSlots schedule{4};
  EXPECT_EQ(filled(uses_of(schedule, {0, 1})), (std::vector{0, 1}));
  EXPECT_EQ(filled(uses_of(schedule, {1, 0})), (std::vector<int>{}));
  schedule.forget();
  EXPECT_EQ(filled(uses_of(schedule, {1, 0})), (std::vector{1, 0}));
}

TEST(LayerSlots, ALargeLayerStaysInItsSlotWhileOthersComeAndGo) {
  LayerSlots schedule{2, {0}};
  // A model of three blocks and a tied head, two micro-batches.
  auto const uses = uses_of(schedule, {0, 1, 2, 3, 4, 0, 3, 2, 1, 0, 1, 2, 3, 4, 0});
  EXPECT_EQ(filled(uses), (std::vector{0, 1, 2, 3, 4, 2, 1, 3, 4}));
  for (auto const& use : uses) {
    EXPECT_EQ(use.slot == 2, use.layer == 0);
  }
}

TEST(LayerSlots, LargeLayersWaitForEachOther) {
  LayerSlots schedule{2, {0, 3}};
  auto const uses = uses_of(schedule, {0, 1, 2, 3, 2, 1, 0});
  EXPECT_EQ(filled(uses), (std::vector{0, 1, 2, 3, 0}));
  EXPECT_EQ(uses[3].slot, uses[0].slot);
  EXPECT_EQ(uses[3].after, 0);
  EXPECT_EQ(uses[6].after, 3);
}

TEST(LayerSlots, NeedsTwoSlots) {
  EXPECT_THROW(LayerSlots{1}, PreconditionError);
}

TEST(LayerSlots, NoUseWaitsForTheOneBeforeAndEveryOneFindsItsLayer) {
  std::mt19937 random{3};
  for (int round = 0; round < 200; ++round) {
    int const slots = 2 + static_cast<int>(random() % 4);
    bool const large = round % 2 == 0;
    LayerSlots schedule{slots, large ? std::vector{0} : std::vector<int>{}};
    std::vector<int> holds(static_cast<std::size_t>(slots) + 1, -1);
    int last_layer = -1;
    for (std::int64_t i = 0; i < 100; ++i) {
      int const layer = static_cast<int>(random() % 7);
      if (layer == last_layer) {
        --i;
        continue;
      }
      auto const use = schedule.add(layer);
      EXPECT_EQ(use.slot == slots, large && layer == 0);
      auto& slot = holds[static_cast<std::size_t>(use.slot)];
      EXPECT_EQ(use.fill, slot != layer);
      slot = layer;
      if (use.fill) {
        EXPECT_TRUE(use.after == -1 || use.after < i - 1) << "the layer before may still be held";
      }
      last_layer = layer;
    }
  }
}

}  // namespace
}  // namespace offstage::plan
