#include "model/gradient_buffers.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
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
  std::span<int> all{memory};
};

TEST(GradientBuffers, AreWrittenAgainWhenTheSinkHasReadThem) {
  Scene scene;
  GradientBuffers<int> buffers{{{scene.all.subspan(0, 1), scene.all.subspan(1, 1)}, {}}};
  buffers.begin();
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
  GradientBuffers<int> buffers{
      {{scene.all.subspan(0, 1), scene.all.subspan(1, 1)}, scene.all.subspan(2, 1)}};
  buffers.begin();
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
  GradientBuffers<int> buffers{
      {{scene.all.subspan(0, 1), scene.all.subspan(1, 1)}, scene.all.subspan(2, 1)}};
  buffers.begin();
  auto const attention = buffers.next_of_attention(*scene.stream);
  buffers.given(nullptr);
  buffers.given_none(scene.sink->record());
  buffers.given_none(nullptr);  // of a gradient that there was not
  EXPECT_EQ(buffers.next_of_attention(*scene.stream).data(), attention.data());
  EXPECT_TRUE(scene.waits());
}

}  // namespace
}  // namespace offstage::model
