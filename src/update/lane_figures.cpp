#include "update/lane_figures.hpp"

#include <algorithm>
#include <string_view>

namespace offstage::update {
namespace {

struct RowText {
  std::string_view row;
  char const* span;
};
constexpr std::array<RowText, 4> texts{{{"host to device", "fetch"},
                                        {"device update", "update"},
                                        {"device to host", "flush"},
                                        {"parameters to device", "send"}}};

}  // namespace

DeviceLaneStats operator-(DeviceLaneStats const& after, DeviceLaneStats const& before) {
  return {.host_to_device = after.host_to_device - before.host_to_device,
          .device_to_host = after.device_to_host - before.device_to_host,
          .kernel = after.kernel - before.kernel,
          .to_device_bytes = after.to_device_bytes - before.to_device_bytes,
          .to_host_bytes = after.to_host_bytes - before.to_host_bytes,
          .updated = after.updated - before.updated};
}

Seconds BusyTime::total() {
  std::ranges::sort(spans_, {}, &Span::begin);
  for (Span const& span : spans_) {
    auto const begin = std::max(span.begin, until_);
    if (span.end > begin) {
      total_ += span.end - begin;
      until_ = span.end;
    }
  }
  spans_.clear();
  return total_;
}

void LaneFigures::add(Row row, Stretch const& work, std::int64_t amount, std::int64_t subgroup) {
  auto const begin = work.begin->when();
  auto const end = work.end->when();
  Resource const resource = row == Row::kernel           ? kernel
                            : row == Row::device_to_host ? to_host
                                                         : to_device;
  {
    std::scoped_lock const lock{mutex_};
    busy_[resource].add(begin, end);
    amounts_[resource] += amount;
  }
  if (trace_ != nullptr) {
    RowText const& text = texts[static_cast<std::size_t>(row)];
    trace_->span(text.row, text.span, begin, end, subgroup, row == Row::kernel ? -1 : amount);
  }
}

DeviceLaneStats LaneFigures::stats() const {
  std::scoped_lock const lock{mutex_};
  return {.host_to_device = busy_[to_device].total(),
          .device_to_host = busy_[to_host].total(),
          .kernel = busy_[kernel].total(),
          .to_device_bytes = amounts_[to_device],
          .to_host_bytes = amounts_[to_host],
          .updated = amounts_[kernel]};
}

}  // namespace offstage::update
