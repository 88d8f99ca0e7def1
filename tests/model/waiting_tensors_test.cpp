#include "model/waiting_tensors.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "device/device.hpp"
#include "state/exchange.hpp"

namespace offstage::model {
namespace {

using namespace std::chrono_literals;

/// A store that has read all that it is given at one event.
class OneEvent final : public state::ActivationStore {
 public:
  explicit OneEvent(std::shared_ptr<device::Event> event) : event_{std::move(event)} {}
  void open() override {}
  [[nodiscard]] std::shared_ptr<device::Event> put(
      int /*block*/, int /*part*/, std::span<std::byte const> /*memory*/,
      std::shared_ptr<device::Event> const& /*made*/) override {
    return event_;
  }
  [[nodiscard]] std::shared_ptr<device::Event> take(
      int /*block*/, int /*part*/, std::span<std::byte> /*memory*/,
      std::shared_ptr<device::Event> const& freed) override {
    return freed;
  }
  [[nodiscard]] state::ActivationTraffic traffic() const override { return {}; }

 private:
  std::shared_ptr<device::Event> event_;
};

TEST(WaitingTensors, MayBeReadButNotChangedWhileTheyLeave) {
  auto const device = device::make_host_device(0);
  auto const stream = device->make_stream("model");
  auto const others = device->make_stream("others");
  std::promise<void> sign;
  others->enqueue([go_on = sign.get_future().share()] { go_on.wait(); });
  OneEvent store{others->record()};
  std::vector<std::byte> memory(2);
  WaitingTensors tensors{
      {std::span{memory}.first(1), std::span{memory}.subspan(1)}, 1, 3, 0, *stream};
  tensors.set_store(store);
  tensors.begin();
  auto const made = tensors.make(0);
  tensors.keep(0);
  EXPECT_EQ(tensors.use(0).data(), made.data());
  stream->synchronize();
  tensors.drop(0);
  EXPECT_EQ(tensors.change(0).data(), made.data());
  std::atomic<bool> changed = false;
  stream->enqueue([&] { changed = true; });
  std::this_thread::sleep_for(20ms);  // the stream alone would have come so far meanwhile
  EXPECT_FALSE(changed);
  sign.set_value();
  stream->synchronize();
  EXPECT_TRUE(changed);
}

}  // namespace
}  // namespace offstage::model
