#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "device/device.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/trace/trace.hpp"
#include "state/exchange.hpp"

namespace offstage::activations {

/// Activations in host memory, a place of its own for each part. Two streams of its own copy, one
/// out and one back, beside the model's, at most 64 MiB at a time, so that other transfers come
/// between; no thread waits.
///
/// Source:  Fuyou section 4.4.
/// Memory:  host, pinned: host_bytes(), all at construction.
/// Trace:   rows "activations out" and "activations back", written when the next micro-batch
///          begins.
/// Errors:  construction: Error if there is no memory. Members: PreconditionError for a part that
///          is not among those that leave, or of another size, or that is taken and not there; what
///          streams throw, at their points.
class HostActivations final : public state::ActivationStore {
 public:
  /// `trace` may be null. `device` and `trace` outlive this.
  HostActivations(std::span<state::LeavingPart const> parts, device::Device& device,
                  trace::Trace* trace);
  /// Waits for the streams; the trace has all copies then.
  ~HostActivations() override;
  HostActivations(HostActivations const&) = delete;
  HostActivations& operator=(HostActivations const&) = delete;

  void open() override;
  [[nodiscard]] std::shared_ptr<device::Event> put(
      int block, int part, std::span<std::byte const> memory,
      std::shared_ptr<device::Event> const& made) override;
  [[nodiscard]] std::shared_ptr<device::Event> take(
      int block, int part, std::span<std::byte> memory,
      std::shared_ptr<device::Event> const& freed) override;

  /// The model's thread never waits.
  [[nodiscard]] state::ActivationTraffic traffic() const override { return traffic_; }
  [[nodiscard]] static Bytes host_bytes(std::span<state::LeavingPart const> parts);

 private:
  struct Place {
    std::span<std::byte> memory;
    std::shared_ptr<device::Event> there;  ///< null: nothing is
  };
  /// A copy, for the trace.
  struct TracedCopy {
    char const* row;
    int block;
    Bytes bytes;
    std::shared_ptr<device::Event> begin, end;
  };
  [[nodiscard]] Place& place(int block, int part, std::size_t bytes);
  std::shared_ptr<device::Event> copy(device::Stream& stream, std::byte* target,
                                      std::byte const* source, TracedCopy copy,
                                      device::Copy direction);
  void tell_of_copies();

  trace::Trace* trace_;
  memory::HugeBuffer memory_;
  std::unique_ptr<device::Pinned> pinned_;
  std::map<std::pair<int, int>, Place> places_;  ///< by block and part
  state::ActivationTraffic traffic_;
  std::vector<TracedCopy> copies_;
  std::unique_ptr<device::Stream> out_, back_;  // last: their work uses all of the above
};

}  // namespace offstage::activations
