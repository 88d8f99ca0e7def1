#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "device/device.hpp"

namespace offstage::device {

/// Hands everything on to another stream.
class WrappedStream : public Stream {
 public:
  explicit WrappedStream(std::unique_ptr<Stream> inner) : inner_{std::move(inner)} {}

  [[nodiscard]] Kind kind() const noexcept override { return inner_->kind(); }
  void copy(void* target, void const* source, Bytes size, Copy direction) override {
    inner_->copy(target, source, size, direction);
  }
  void zero(void* target, Bytes size) override { inner_->zero(target, size); }
  void enqueue(std::function<void()> kernel, Work work) override {
    inner_->enqueue(std::move(kernel), work);
  }
  [[nodiscard]] void* native() const noexcept override { return inner_->native(); }
  [[nodiscard]] std::span<std::byte> scratch() const noexcept override { return inner_->scratch(); }
  [[nodiscard]] cuda::BlasLt& blas() override { return inner_->blas(); }
  [[nodiscard]] std::shared_ptr<Event> record() override { return inner_->record(); }
  void wait(Event const& event) override { inner_->wait(event); }
  void synchronize() override { inner_->synchronize(); }

 protected:
  [[nodiscard]] Stream& inner() noexcept { return *inner_; }

 private:
  std::unique_ptr<Stream> inner_;
};

/// Hands everything on to another device, whose memory host code must not touch, so that all work
/// goes by the streams; wrap() may put others in their place.
class WrappedDevice : public Device {
 public:
  explicit WrappedDevice(std::unique_ptr<Device> inner) : inner_{std::move(inner)} {}

  [[nodiscard]] Kind kind() const noexcept override { return inner_->kind(); }
  [[nodiscard]] std::string name() const override { return inner_->name(); }
  /// The buffer is the inner device's.
  [[nodiscard]] Buffer allocate(Bytes size, std::string const& purpose) override {
    return inner_->allocate(size, purpose);
  }
  void set_aside(Bytes size, std::string const& purpose) override {
    inner_->set_aside(size, purpose);
  }
  [[nodiscard]] std::unique_ptr<Stream> make_stream(std::string const& name,
                                                    Priority priority = Priority::high) override {
    return wrap(inner_->make_stream(name, priority));
  }
  [[nodiscard]] std::unique_ptr<Stream> make_calling_stream(std::string const& name) override {
    return wrap(inner_->make_calling_stream(name));
  }
  [[nodiscard]] std::unique_ptr<Pinned> pin(std::span<std::byte> memory) override {
    return inner_->pin(memory);
  }
  [[nodiscard]] bool host_visible() const noexcept override { return false; }
  [[nodiscard]] Bytes capacity() const noexcept override { return inner_->capacity(); }
  [[nodiscard]] Bytes used() const noexcept override { return inner_->used(); }
  [[nodiscard]] Bytes peak() const noexcept override { return inner_->peak(); }

 protected:
  [[nodiscard]] Device const& inner() const noexcept { return *inner_; }
  /// What the caller gets for a stream of the inner device.
  [[nodiscard]] virtual std::unique_ptr<Stream> wrap(std::unique_ptr<Stream> stream) {
    return stream;
  }
  void free(std::byte* /*data*/, Bytes /*size*/) noexcept override {}  // no buffer is its own

 private:
  std::unique_ptr<Device> inner_;
};

}  // namespace offstage::device
