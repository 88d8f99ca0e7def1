#include "train/memory/memory_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "train/memory/memory_demand.hpp"

namespace offstage::train {
namespace {

std::string line(std::string const& what, std::string const& device, std::string const& host,
                 std::string const& storage) {
  return fmt::format("  {:<26} {:>12} {:>12} {:>12}", what, device, host, storage);
}

std::string size(Bytes bytes) {
  return bytes > 0 ? format_bytes(bytes) : "-";
}

std::string limit(Bytes bytes) {
  return bytes > 0 ? format_bytes(bytes) : "none";
}

}  // namespace

std::vector<MemoryRow> memory_rows(config::RunConfig const& config, MemoryFacts const& facts) {
  plan::MemoryPlan const& plan = facts.plan;
  DeviceDemand const& device = facts.device;
  Bytes const extent = config.optimizer.layout().bytes(plan.subgroup_elements);
  bool const stored = config.parameter_home == parameters::Home::storage;
  // As many extents stay as there are places for; a buffer holds none for long.
  std::int64_t const waiting = plan.subgroups - std::min(plan.subgroups, plan.cached);
  Bytes const all_gradients = facts.shard_elements * facts.gradient_bytes;
  Bytes const gradients_here =
      plan.gradients_cached * plan.subgroup_elements * facts.gradient_bytes;
  Bytes const spilled =
      plan.gradient_buffers > 0 ? std::max<Bytes>(0, all_gradients - gradients_here) : 0;
  Bytes const flushed =
      config.flushes_fp32() ? facts.shard_elements * static_cast<Bytes>(sizeof(float)) : 0;
  std::vector<MemoryRow> rows{
      {.what = "16-bit parameters",
       .device = device.working_copy,
       .host = plan.parameters,
       .storage = stored ? facts.shard_elements * facts.parameter_bytes : 0},
      {.what = "activations and scratch",
       .device = device.model,
       .host = plan.activations,
       .storage = facts.stored_activations},
      {.what = "gradients, and their way",
       .device = device.gradient + device.held,
       .host = plan.gradients,
       .storage = spilled + flushed},
      {.what = "optimizer state",
       .device = device.resident,
       .host = plan.state - plan.spares * extent,
       .storage = waiting * extent},
      {.what = "second versions of it",
       .host = plan.spares * extent,
       .storage = facts.spare_slots * extent},
      {.what = "versions that a save holds",
       .storage = holds_versions(config) ? waiting * extent : 0},
      {.what = "chunks of the update", .device = device.chunk_buffers},
      {.what = "NCCL's buffers", .device = device.rank_link}};
  std::erase_if(rows,
                [](MemoryRow const& row) { return row.device + row.host + row.storage == 0; });
  if (config.numerics.dtype == DType::fp32 && rows.front().what.starts_with("16-bit")) {
    rows.front().what = "parameters";
  }
  return rows;
}

std::vector<std::string> memory_table(std::vector<MemoryRow> const& rows,
                                      MemoryLimits const& limits) {
  std::vector<std::string> lines{line("memory, per rank", "device", "host", "storage")};
  MemoryRow all;
  for (MemoryRow const& row : rows) {
    lines.push_back(line(row.what, size(row.device), size(row.host), size(row.storage)));
    all.device += row.device;
    all.host += row.host;
    all.storage += row.storage;
  }
  lines.push_back(line("together", size(all.device), size(all.host), size(all.storage)));
  lines.push_back(line("limit", limit(limits.device), limit(limits.host), "by path"));
  return lines;
}

}  // namespace offstage::train
