// Updates that begin under backward: kept, done again or undone, with the bits of plain ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/error.hpp"
#include "device/shuffled_device.hpp"
#include "early_update.hpp"
#include "shared_update.hpp"
#include "stall_watch.hpp"
#include "targets_in.hpp"

namespace offstage::update {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

/// So many subgroups from the end, as backward comes to them.
std::vector<tiers::Key> last(int number, int of) {
  std::vector<tiers::Key> keys;
  for (int i = 0; i < number; ++i) {
    keys.push_back(of - 1 - i);
  }
  return keys;
}

/// An update over a scene, and what plain updates made of the same.
struct Pair {
  explicit Pair(Scene const& scene) : ahead{scene}, plain{ahead.shard()} {}
  void expect_same(std::string const& when) {
    EXPECT_TRUE(same_bits(plain.state(), state_of(ahead.shard(), ahead.state())))
        << when << ": state";
    for (auto const& subgroup : ahead.shard().subgroups) {
      EXPECT_TRUE(ahead.shows(subgroup.index, plain.copy()))
          << when << ": parameters of subgroup " << subgroup.index;
    }
  }
  EarlyUpdate ahead;
  Plain plain;
};

TEST(Overlap, KeepsWhatItBeganWithTheBitsOfAPlainUpdate) {
  StallWatch watch;
  for (Scene const& scene : scenes()) {
    SCOPED_TRACE(text(scene));
    watch.say(text(scene));
    Pair pair{scene};
    for (int t = 1; t <= 2; ++t) {
      Values const& gradient = gradient_at(t);
      pair.ahead.begin_early(step_of(t));
      pair.ahead.backward(gradient);
      pair.ahead.update().confirm();
      auto const stats = pair.ahead.update().finish();
      EXPECT_EQ(stats.cpu_elements + stats.device_elements, pair.ahead.shard().size);
      pair.plain.step(step_of(t), gradient);
    }
    pair.expect_same("kept");
  }
}

TEST(Overlap, TakenBackLeavesWhatWasAndIsDoneAgainByAnotherFactor) {
  StallWatch watch;
  for (Scene const& scene : scenes()) {
    SCOPED_TRACE(text(scene));
    watch.say(text(scene));
    Pair pair{scene};
    for (int t = 1; t <= 2; ++t) {
      Values const& gradient = gradient_at(t);
      pair.ahead.begin_early(step_of(t));
      pair.ahead.backward(gradient);
      std::ignore = pair.ahead.update().revert();
      EXPECT_TRUE(pair.plain.state() == state_of(pair.ahead.shard(), pair.ahead.state()));
      pair.ahead.run(step_of(t, 0.1));
      pair.ahead.update().finish();
      pair.plain.step(step_of(t, 0.1), gradient);
    }
    pair.expect_same("done again");
  }
}

// One step is kept, the next taken back and done again; stochastic rounding gives the same bits
// once more.
TEST(Overlap, KeepsAndTakesBackWithEveryOptimizerAndItsMoments) {
  StallWatch watch;
  bool on_device = false;
  for (Optimizer const& optimizer : all_optimizers()) {
    on_device = !on_device;
    Scene scene = all_on_trial();
    scene.layout = optimizer.layout;
    scene.on_device = on_device;
    scene.residents = on_device ? 1 : 0;
    SCOPED_TRACE(optimizer.text());
    watch.say(optimizer.text());
    Pair pair{scene};
    kernels::OptimizerStep step = optimizer.step;
    pair.ahead.begin_early(step);
    pair.ahead.backward(gradient_at(1));
    pair.ahead.update().confirm();
    pair.ahead.update().finish();
    pair.plain.step(step, gradient_at(1));
    step.step = 2;
    pair.ahead.begin_early(step);
    pair.ahead.backward(gradient_at(2));
    std::ignore = pair.ahead.update().revert();
    step.gradient_scale = 0.1;
    pair.ahead.run(step);
    pair.ahead.update().finish();
    pair.plain.step(step, gradient_at(2));
    pair.expect_same("done again");
  }
}

TEST(Overlap, SkippedLeavesStateAndParametersAsTheyWere) {
  StallWatch watch;
  for (Scene const& scene : scenes()) {
    SCOPED_TRACE(text(scene));
    watch.say(text(scene));
    Pair pair{scene};
    for (int t = 1; t <= 2; ++t) {
      pair.ahead.begin_early(step_of(1));
      pair.ahead.backward(gradient_at(t));
      pair.ahead.rebuild(pair.ahead.update().revert().subgroups);
      pair.ahead.readiness().finish();
    }
    pair.expect_same("skipped");
  }
}

TEST(Overlap, UpdatesAllThatHasASpareBeforeTheVerdict) {
  StallWatch const watch;
  for (bool const keep : {true, false}) {
    EarlyUpdate ahead{all_on_trial()};
    Plain plain{ahead.shard()};
    Values const& gradient = gradient_at(1);
    ahead.begin_early(step_of(1));
    ahead.backward(gradient);
    plain.step(step_of(1), gradient);
    for (auto const& subgroup : ahead.shard().subgroups) {
      ahead.wait_for(subgroup.index);
      EXPECT_TRUE(ahead.shows(subgroup.index, plain.copy())) << subgroup.index;
    }
    UpdateStats stats;
    if (keep) {
      ahead.update().confirm();
      stats = ahead.update().finish();
    } else {
      auto const taken = ahead.update().revert();
      EXPECT_THAT(taken.subgroups, UnorderedElementsAreArray(last(7, 7)));
      stats = taken.stats;
    }
    EXPECT_EQ(stats.tried, 7);
  }
}

TEST(Overlap, UpdatesWhatHasASpareAlthoughTheLowestSubgroupsHaveNone) {
  StallWatch const watch;
  Scene scene = all_on_trial();
  scene.cached = 3;
  scene.evict = plan::Evict::highest;
  scene.workers = 1;
  EarlyUpdate ahead{scene};
  Plain plain{ahead.shard()};
  Values const& gradient = gradient_at(1);
  std::vector<bool> cached;
  for (auto const& subgroup : ahead.shard().subgroups) {
    cached.push_back(ahead.state().in_memory(subgroup.index));
  }
  EXPECT_THAT(cached, ElementsAre(true, true, true, false, false, false, false));
  ahead.begin_early(step_of(1));
  ahead.backward(gradient);
  plain.step(step_of(1), gradient);
  for (std::int64_t index = 3; index < 7; ++index) {
    ahead.wait_for(index);
    EXPECT_TRUE(ahead.shows(index, plain.copy())) << index;
  }
  ahead.update().confirm();
  EXPECT_EQ(ahead.update().finish().tried, 4);
  for (std::int64_t index = 0; index < 3; ++index) {
    EXPECT_TRUE(ahead.shows(index, plain.copy())) << index;
  }
}

TEST(Overlap, ChangesNothingBeforeTheVerdictWhereThereIsNoSpare) {
  StallWatch const watch;
  for (bool const on_device : {false, true}) {
    Scene scene;
    scene.on_device = on_device;
    scene.residents = on_device ? 2 : 0;
    scene.workers = 4;
    EarlyUpdate ahead{scene};
    Values const before = first_copy(ahead.shard());
    ahead.begin_early(step_of(1));
    ahead.backward(gradient_at(1));
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    auto const taken = ahead.update().revert();
    EXPECT_THAT(taken.subgroups, IsEmpty());
    EXPECT_EQ(taken.stats.tried, 0);
    EXPECT_EQ(taken.stats.cpu_elements + taken.stats.device_elements, 0);
    for (auto const& subgroup : ahead.shard().subgroups) {
      EXPECT_TRUE(ahead.shows(subgroup.index, before)) << subgroup.index;
    }
  }
}

/// Brings three gradients and waits for their updates; then one that fails the presumption, and the
/// others.
void expect_three_reverted(Values const& gradient, double most_squares) {
  EarlyUpdate ahead{all_on_trial()};
  Plain const plain{ahead.shard()};
  ahead.begin_early(step_of(1), most_squares);
  for (std::int64_t index = 6; index >= 4; --index) {
    ahead.bring(index, gradient);
  }
  ahead.drain();
  for (std::int64_t index = 6; index >= 4; --index) {
    ahead.wait_for(index);
  }
  for (std::int64_t index = 3; index >= 0; --index) {
    ahead.bring(index, gradient);
  }
  ahead.drain();
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  auto const taken = ahead.update().revert();
  EXPECT_THAT(taken.subgroups, UnorderedElementsAreArray(last(3, 7)));
  EXPECT_EQ(taken.stats.tried, 3);
  for (std::int64_t index = 0; index < 7; ++index) {
    EXPECT_EQ(ahead.shows(index, plain.copy()), index < 4) << index;
  }
  ahead.rebuild(taken.subgroups);
  for (std::int64_t index = 0; index < 7; ++index) {
    EXPECT_TRUE(ahead.shows(index, plain.copy())) << index;
  }
}

TEST(Overlap, TriesNoMoreOnceTheSquaresAreTooManyAndNamesWhatItChanged) {
  StallWatch const watch;
  Shard const shard{7};
  Values const& gradient = gradient_at(1);
  double squares = 0.0;
  for (std::size_t index = 6; index >= 4; --index) {
    squares += squares_of(part_of(gradient, shard.subgroups[index]));
  }
  expect_three_reverted(gradient, 1.001 * squares);
}

TEST(Overlap, TriesNoMoreOnceASumIsNoNumberOrInfinite) {
  StallWatch const watch;
  Shard const shard{7};
  for (float const bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Values gradient = gradient_at(1);
    gradient[static_cast<std::size_t>(shard.subgroups[3].begin)] = store<bfloat16>(bad);
    expect_three_reverted(gradient, no_clipping);
  }
}

TEST(Overlap, HoldsUpWhoReadsWhatIsNotUpdatedYetAndNobodyElse) {
  StallWatch const watch;
  Scene scene;
  scene.spare_slots = 1;  // of the last subgroup, by one worker
  scene.workers = 1;
  EarlyUpdate ahead{scene};
  Plain plain{ahead.shard()};
  Values const& gradient = gradient_at(1);
  ahead.begin_early(step_of(1));
  for (std::int64_t index = 6; index >= 0; --index) {
    ahead.wait_for(index);  // backward reads it, as it was
    EXPECT_TRUE(ahead.shows(index, plain.copy())) << index;
    ahead.bring(index, gradient);
    if (index == 6) {  // Who comes first gets the spare: of those that are complete the last one.
      ahead.drain();
      ahead.wait_for(6);
    }
  }
  ahead.drain();
  plain.step(step_of(1), gradient);
  std::atomic<bool> decided = false;
  std::thread reader{[&] {
    ahead.wait_for(0);
    EXPECT_TRUE(decided);
  }};
  ahead.wait_for(6);
  EXPECT_TRUE(ahead.shows(6, plain.copy()));
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  decided = true;
  ahead.update().confirm();
  for (std::int64_t index = 0; index < 7; ++index) {
    ahead.wait_for(index);
    EXPECT_TRUE(ahead.shows(index, plain.copy())) << index;
  }
  reader.join();
  ahead.update().finish();
}

/// Tiers in host memory, where whoever wants a lease on trial gets it late.
class LateTrials final : public tiers::Tiers {
 public:
  explicit LateTrials(std::vector<Bytes> const& extents) {
    tiers::VirtualSettings settings;
    settings.cached = settings.spare_buffers = std::ssize(extents);
    inner_ = tiers::make_virtual_tiers(extents, settings);
  }
  tiers::Lease fetch(tiers::Key key) override { return inner_->fetch(key); }
  tiers::Lease create(tiers::Key key) override { return inner_->create(key); }
  std::optional<tiers::Lease> fetch_on_trial(tiers::Key key) override {
    asked.set_value();
    let_go.get_future().wait();
    return inner_->fetch_on_trial(key);
  }
  void accept_trials() override { inner_->accept_trials(); }
  std::vector<tiers::Key> revert_trials() override { return inner_->revert_trials(); }
  [[nodiscard]] tiers::Traffic traffic() const override { return inner_->traffic(); }
  [[nodiscard]] Bytes host_bytes() const override { return inner_->host_bytes(); }

  std::promise<void> asked;
  std::promise<void> let_go;

 protected:  // leases are the inner ones'
  void commit(tiers::Key) override { throw PreconditionError{"not its lease"}; }
  void discard(tiers::Key, bool) noexcept override {}

 private:
  std::unique_ptr<tiers::Tiers> inner_;
};

TEST(Overlap, LeavesNothingOnTrialThatItKeepsHoweverLateItBegan) {
  StallWatch const watch;
  Shard const shard{1};
  LateTrials tiers{shard.extents()};
  initialize(shard, tiers);
  MemoryTiers gradient_tiers{shard.extents(2)};
  Gradients<bfloat16> gradients{shard, gradient_tiers};
  gradients.set(random_values<bfloat16>(shard.size, 1));
  Values copy(static_cast<std::size_t>(shard.size));
  Update update{{.subgroups = shard.subgroups,
                 .state = tiers,
                 .gradient = gradients.source(),
                 .target = parameters::targets_in(std::span{copy})},
                {.workers = 1}};
  update.plan(on_cpu({0}));
  update.begin_early(step_of(1), no_clipping);
  tiers.asked.get_future().wait();
  update.complete(0, 0.0);
  update.confirm();
  tiers.let_go.set_value();
  auto const stats = update.finish();
  EXPECT_EQ(stats.cpu_elements, shard.size);
  EXPECT_EQ(stats.tried, 0);  // the norm was known
  EXPECT_THAT(tiers.revert_trials(), IsEmpty());
}

TEST(Overlap, RefusesWhatItsStateDoesNotAllow) {
  EarlyUpdate ahead{all_on_trial()};
  auto& update = ahead.update();
  update.complete(0, 0.0);  // of an update that begins when all gradients are there
  EXPECT_THROW(update.confirm(), PreconditionError);
  EXPECT_THROW(std::ignore = update.revert(), PreconditionError);
  ahead.begin_early(step_of(1));
  EXPECT_TRUE(update.is_early());
  EXPECT_THROW(ahead.run(step_of(1)), PreconditionError);
  EXPECT_THROW(ahead.begin_early(step_of(1)), PreconditionError);
  EXPECT_THROW(update.begin_early(step_of(1), no_clipping), PreconditionError);
  EXPECT_THROW(update.finish(), PreconditionError);
  std::ignore = update.revert();
  EXPECT_FALSE(update.is_early());
}

TEST(Overlap, RefusesActivationsMemoryAsTheOnlyPlaceForChunks) {
  Shard const shard{3};
  Numbers<bfloat16> const numbers{shard, 1};
  device::ShuffledDevice device{1};
  SharedUpdate<bfloat16, bfloat16> update{
      device, shard, numbers, {.buffers = 1, .lent_buffers = 1}};
  update.update().plan(update.order());
  EXPECT_THROW(update.update().begin_early(first_step, no_clipping), PreconditionError);
  EXPECT_FALSE(update.update().is_early());
  update.run(1);
}

}  // namespace
}  // namespace offstage::update
