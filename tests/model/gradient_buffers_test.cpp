#include "model/gradient_buffers.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <span>
#include <thread>

#include "device/device.hpp"

namespace offstage::model {
namespace {

using namespace std::chrono_literals;

/// A model's stream, and a sink that reads nothing before it may.
struct Scene {
  Scene() {
    sink->enqueue([go_on = sign.get_future().share()] { go_on.wait(); });
  }
  [[nodiscard]] GradientBuffers<int> buffers(bool of_attention) {
    GradientBuffers<int> all{{{of(0), of(1)}, of_attention ? of(2) : std::span<int>{}}};
    all.begin();
    return all;
  }
  [[nodiscard]] std::span<int> of(std::size_t buffer) {
    return std::span{memory}.subspan(buffer, 1);
  }
  /// Returns whether the model's stream waits for the sink. Ends the wait.
  bool waits() {
    std::atomic<bool> passed = false;
    stream->enqueue([&] { passed = true; });
    std::this_thread::sleep_for(20ms);  // the stream alone would have come so far meanwhile
    bool const waited = !passed;
    sign.set_value();
    stream->synchronize();
    return waited;
  }

  std::unique_ptr<device::Device> device = device::make_host_device(0);
  std::unique_ptr<device::Stream> stream = device->make_stream("model");
  std::unique_ptr<device::Stream> sink = device->make_stream("sink");
  std::promise<void> sign;
  std::array<int, 3> memory{};
};

TEST(GradientBuffers, AreWrittenAgainWhenTheSinkHasReadThem) {
  Scene scene;
  auto buffers = scene.buffers(false);
  auto const mlp = buffers.next(*scene.stream);
  buffers.given(nullptr);
  auto const attention = buffers.next_of_attention(*scene.stream);
  EXPECT_NE(attention.data(), mlp.data());
  buffers.given(scene.sink->record());  // the MLP's
  scene.stream->synchronize();
  EXPECT_EQ(buffers.next(*scene.stream).data(), mlp.data());
  EXPECT_TRUE(scene.waits());
}

TEST(GradientBuffers, AnMlpsIsReadWhileTheNextMlpsIsMade) {
  Scene scene;
  auto buffers = scene.buffers(true);
  auto const mlp = buffers.next(*scene.stream);
  buffers.given(nullptr);
  auto const attention = buffers.next_of_attention(*scene.stream);
  buffers.given(scene.sink->record());
  auto const next = buffers.next(*scene.stream);
  EXPECT_NE(next.data(), mlp.data());
  EXPECT_NE(next.data(), attention.data());
  scene.stream->synchronize();  // it waits for nobody
  buffers.given(scene.sink->record());
  EXPECT_EQ(buffers.next_of_attention(*scene.stream).data(), attention.data());
  EXPECT_TRUE(scene.waits());
}

TEST(GradientBuffers, AreReadUntilAfterTheLastOneThatTheSinkWasGiven) {
  Scene scene;
  auto buffers = scene.buffers(true);
  auto const attention = buffers.next_of_attention(*scene.stream);
  buffers.given(nullptr);
  buffers.given_none(scene.sink->record());
  buffers.given_none(nullptr);  // of a gradient that there was not
  EXPECT_EQ(buffers.next_of_attention(*scene.stream).data(), attention.data());
  EXPECT_TRUE(scene.waits());
}

}  // namespace
}  // namespace offstage::model
