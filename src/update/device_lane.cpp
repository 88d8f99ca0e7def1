#include "update/device_lane.hpp"

#include <algorithm>
#include <optional>

#include "base/chunk.hpp"
#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::update {
namespace {

DeviceLaneSettings checked(DeviceLaneSettings const& settings) {
  require(settings.chunk > 0 && settings.chunk % chunk_elements == 0,
          "DeviceLane: a chunk is a multiple of chunk_elements");
  require(settings.buffers >= 0 && settings.parameter_buffers >= 1,
          "DeviceLane: the CPU's parameters need a buffer");
  return settings;
}

Bytes buffer_bytes(DeviceLaneSettings const& settings) {
  return settings.layout.bytes(settings.chunk) +
         settings.chunk * (settings.gradient_bytes +
                           (settings.parameters_on_host ? settings.parameter_bytes : 0));
}

std::byte const* address_of(kernels::GradientView const& view) {
  return std::visit([](auto span) { return reinterpret_cast<std::byte const*>(span.data()); },
                    view);
}

/// The same values, elsewhere.
kernels::GradientView moved_to(std::byte const* address, kernels::GradientView const& view) {
  return std::visit(
      [&]<class G>(std::span<G const> span) {
        return kernels::GradientView{std::span{reinterpret_cast<G const*>(address), span.size()}};
      },
      view);
}

}  // namespace

kernels::WorkingCopyView moved_to(std::byte* address, kernels::WorkingCopyView const& view) {
  return std::visit(
      [&]<class W>(std::span<W> span) {
        return kernels::WorkingCopyView{std::span{reinterpret_cast<W*>(address), span.size()}};
      },
      view);
}

std::byte* address_of(kernels::WorkingCopyView const& view) {
  return std::visit([](auto span) { return reinterpret_cast<std::byte*>(span.data()); }, view);
}

/// A subgroup to update; state, gradient and target are of its elements.
struct DeviceLane::Job {
  state::Subgroup const& subgroup;
  StateViews state;
  kernels::GradientView const& gradient;
  parameters::Target const& target;
  kernels::OptimizerStep const& step;
  bool resident;
  GradientPlace place;

  /// Returns whether anything crosses the link, by buffers; else one kernel does all.
  [[nodiscard]] bool needs_buffers() const {
    return place == GradientPlace::host || !resident || !target.on_device;
  }
};

DeviceLane::DeviceLane(device::Device& device, DeviceLaneSettings const& settings,
                       trace::Trace* trace, device::MemoryCounter* memory)
    : settings_{checked(settings)},
      figures_{trace},
      memory_{memory},
      buffers_{device, settings.buffers, buffer_bytes(settings), settings.lent,
               "the device's share of the update (update.device-share, update.device-chunk)"},
      bring_{device.make_stream("host to device")},
      update_{device.make_stream("device update", device::Priority::usual)},
      return_{device.make_stream("device to host")} {
  if (!device.host_visible() && !settings.parameters_on_host) {
    sender_ = std::make_unique<ParameterSender>(
        device, settings.parameter_buffers, settings.chunk * settings.parameter_bytes, figures_);
  }
}

DeviceLane::~DeviceLane() {
  settle();
}

void DeviceLane::update(state::Subgroup const& subgroup, std::span<std::byte> state,
                        kernels::GradientView const& gradient, parameters::Target const& target,
                        kernels::OptimizerStep const& step, GradientPlace place) {
  run({subgroup, state_views(settings_.layout, state, subgroup.size), gradient, target, step, false,
       place});
}

void DeviceLane::update_resident(state::Subgroup const& subgroup, std::span<std::byte> state,
                                 kernels::GradientView const& gradient,
                                 parameters::Target const& target,
                                 kernels::OptimizerStep const& step, GradientPlace place) {
  run({subgroup, state_views(settings_.layout, state, subgroup.size), gradient, target, step, true,
       place});
}

void DeviceLane::run(Job const& job) {
  require_fit(job.subgroup, job.gradient);
  require(job.target.on_device || settings_.parameters_on_host,
          "DeviceLane: buffers have no room for parameters that go to host memory");
  require(element_bytes(job.target.view) <= settings_.parameter_bytes,
          "DeviceLane: the working copy's elements are larger than the settings say");
  require(element_bytes(job.gradient) <= settings_.gradient_bytes,
          "DeviceLane: the gradient's elements are larger than the settings say");
  std::vector<Fed> chunks;
  try {
    {
      Waiting const waiting{"the device to be fed with subgroup", job.subgroup.index};
      std::scoped_lock const lock{feed_mutex_};
      std::int64_t const chunk = job.needs_buffers() ? settings_.chunk : job.subgroup.size;
      for (std::int64_t begin = 0; begin < job.subgroup.size; begin += chunk) {
        chunks.push_back(feed(job, {begin, std::min(chunk, job.subgroup.size - begin)}));
      }
    }
    count(job.subgroup, chunks);
  } catch (...) {
    settle();  // the caller's leases are about to end
    throw;
  }
}

DeviceLane::Fed DeviceLane::feed(Job const& job, Range range) {
  std::optional<ChunkBuffers::Taken> buffer;  // of what crosses the link
  if (job.needs_buffers()) {
    buffer.emplace(buffers_.take());
  }
  auto const taken = device::MemoryCounter::Clock::now();
  std::optional<device::MemoryCounter::User> user;
  if (buffer) {
    user =
        buffer->is_lent() ? device::MemoryCounter::User::lent : device::MemoryCounter::User::slots;
  }
  try {
    Fed fed = feed_through(buffer, job, range);
    fed.taken = taken;
    fed.buffer = user;
    return fed;
  } catch (...) {
    // A part of the chunk may be on its way to the buffer, which is about to be free.
    settle_streams();
    throw;
  }
}

DeviceLane::Fed DeviceLane::feed_through(std::optional<ChunkBuffers::Taken>& buffer, Job const& job,
                                         Range range) {
  bool const brings_gradient = job.place == GradientPlace::host;
  StateLayout const& layout = settings_.layout;
  // Its columns: the planes, the gradient, and new parameters that the device cannot write to their
  //              target.
  std::byte* const memory = buffer ? buffer->memory() : nullptr;
  auto const column_at = [&](Bytes offset) {
    return memory != nullptr ? memory + offset : nullptr;
  };
  Bytes const state_bytes = layout.bytes(settings_.chunk);
  std::byte* const gradient_there = column_at(state_bytes);
  std::byte* const parameters = column_at(state_bytes + settings_.chunk * settings_.gradient_bytes);
  StateViews const here = part_of(layout, job.state, range.begin);
  StateViews const there =
      job.resident
          ? here
          : state_views(layout, {memory, static_cast<std::size_t>(state_bytes)}, settings_.chunk);
  kernels::GradientView gradient = part_of(job.gradient, range);

  Fed fed;
  fed.elements = range.count;
  fed.brought.begin = bring_->record();
  if (brings_gradient) {
    Bytes const size = range.count * element_bytes(gradient);
    bring_->copy(gradient_there, address_of(gradient), size, device::Copy::host_to_device);
    fed.brought_bytes += size;
    gradient = moved_to(gradient_there, gradient);
  }
  if (!job.resident) {
    for (std::size_t plane = 0; plane < layout.size(); ++plane) {
      Bytes const column = layout.plane_bytes(plane, range.count);
      bring_->copy(there.at(plane), here.at(plane), column, device::Copy::host_to_device);
      fed.brought_bytes += column;
    }
  }
  kernels::WorkingCopyView const target = part_of(job.target.view, range);
  kernels::WorkingCopyView const copy =
      job.target.on_device ? target : moved_to(parameters, target);
  if (splits_parameter(layout) && !job.target.on_device) {
    Bytes const size = range.count * element_bytes(target);
    bring_->copy(parameters, address_of(target), size, device::Copy::host_to_device);
    fed.brought_bytes += size;
  }
  fed.brought.end = bring_->record();

  update_->wait(*fed.brought.end);
  fed.updated.begin = update_->record();
  step_on_stream(*update_, {job.subgroup, range, layout, there, gradient, copy}, job.step);
  fed.updated.end = update_->record();
  if (!job.resident || !job.target.on_device) {
    take_back(job, range, there, parameters, fed);
  }
  if (buffer) {
    buffer->fill_until(fed.returned.end ? fed.returned.end : fed.updated.end);
  }
  return fed;
}

void DeviceLane::take_back(Job const& job, Range range, StateViews const& there,
                           std::byte const* parameters, Fed& fed) {
  return_->wait(*fed.updated.end);
  fed.returned.begin = return_->record();
  auto const copy = [&](void* target, void const* source, Bytes size) {
    return_->copy(target, source, size, device::Copy::device_to_host);
    fed.returned_bytes += size;
  };
  if (!job.target.on_device) {
    kernels::WorkingCopyView const target = part_of(job.target.view, range);
    copy(address_of(target), parameters, range.count * element_bytes(target));
  }
  if (!job.resident) {
    StateLayout const& layout = settings_.layout;
    StateViews const here = part_of(layout, job.state, range.begin);
    for (std::size_t plane = 0; plane < layout.size(); ++plane) {
      copy(here.at(plane), there.at(plane), layout.plane_bytes(plane, range.count));
    }
  }
  fed.returned.end = return_->record();
}

// Waits for the chunks that it counts: every stream's work, so that the error of any surfaces.
void DeviceLane::count(state::Subgroup const& subgroup, std::vector<Fed> const& chunks) {
  for (Fed const& fed : chunks) {
    figures_.add(LaneFigures::Row::host_to_device, fed.brought, fed.brought_bytes, subgroup.index);
    figures_.add(LaneFigures::Row::kernel, fed.updated, fed.elements, subgroup.index);
    if (fed.returned.end) {
      figures_.add(LaneFigures::Row::device_to_host, fed.returned, fed.returned_bytes,
                   subgroup.index);
    }
    if (memory_ != nullptr && fed.buffer) {
      memory_->used(*fed.buffer, ChunkBuffers::stride(buffer_bytes(settings_)), fed.taken,
                    (fed.returned.end ? fed.returned.end : fed.updated.end)->when());
    }
  }
}

kernels::WorkingCopyView DeviceLane::staging(kernels::WorkingCopyView target, std::int64_t begin,
                                             std::int64_t count) {
  require(stages(), "DeviceLane::staging: the working copy is host memory");
  return sender_->staging(target, begin, count);
}

std::shared_ptr<device::Event> DeviceLane::send() {
  require(stages(), "DeviceLane::send: the working copy is host memory");
  return sender_->send();
}

void DeviceLane::settle() noexcept {
  {
    std::scoped_lock const lock{feed_mutex_};
    settle_streams();
  }
  if (sender_) {
    sender_->settle();
  }
}

void DeviceLane::settle_streams() noexcept {
  for (auto* const stream : {bring_.get(), update_.get(), return_.get()}) {
    try {
      stream->synchronize();
    } catch (...) {  // whoever waits for an event of it gets the error
    }
  }
}

void DeviceLane::leave_lent() {
  if (!buffers_.leave_lent()) {
    settle();
  }
}

DeviceLaneStats DeviceLane::stats() const {
  if (sender_) {
    sender_->count();
  }
  return figures_.stats();
}

Bytes DeviceLane::device_bytes(DeviceLaneSettings const& settings) {
  int const lent =
      ChunkBuffers::lent_buffers(settings.buffers, buffer_bytes(settings), settings.lent);
  return (settings.buffers - lent) * ChunkBuffers::stride(buffer_bytes(settings));
}

Bytes DeviceLane::host_bytes(DeviceLaneSettings const& settings, bool host_visible) {
  bool const stages = !host_visible && !settings.parameters_on_host;
  return stages ? settings.parameter_buffers * settings.chunk * settings.parameter_bytes : 0;
}

}  // namespace offstage::update
