#include "state/working_copy.hpp"

#include <algorithm>
#include <string>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::state {

template <class T>
WorkingCopy<T>::WorkingCopy(ShardMap const& map, mpi::Communicator const& comm,
                            device::Device& device, device::Stream& stream)
    : map_{map},
      comm_{comm},
      stream_{stream},
      shard_{map.shard_elements(comm.rank()) * static_cast<Bytes>(sizeof(T))} {
  Bytes const layer_bytes = map.largest_layer() * static_cast<Bytes>(sizeof(T));
  if (stream.kind() != device::Kind::host) {
    staging_ = memory::HugeBuffer{layer_bytes};
  }
  for (Slot& slot : slots_) {
    slot.buffer = device.allocate(layer_bytes, "a gathered layer");
  }
}

template <class T>
std::span<T const> WorkingCopy<T>::acquire(int layer) {
  Waiting const waiting{"layer", layer};
  auto const free_slot =
      std::ranges::find_if(slots_, [](Slot const& slot) { return slot.layer < 0; });
  require(free_slot != slots_.end(), "WorkingCopy: two layers are held already");
  free_slot->layer = layer;

  auto const elements =
      static_cast<std::size_t>(map_.layers()[static_cast<std::size_t>(layer)].padded_elements());
  auto const target = free_slot->buffer.template as<T>().first(elements);
  // The emulated device's memory is the host's: gather straight into it.
  auto const gathered = staging_.size() > 0 ? staging_.as<T>().first(elements) : target;
  auto const parts = map_.slices(layer, sizeof(T));
  mpi::Slice const& own = parts[static_cast<std::size_t>(comm_.rank())];
  auto const mine =
      shard().subspan(static_cast<std::size_t>(map_.shard_offset(layer, comm_.rank())),
                      static_cast<std::size_t>(own.size) / sizeof(T));
  std::ranges::copy(mine, gathered.begin() + own.offset / static_cast<Bytes>(sizeof(T)));
  comm_.all_gather(std::as_writable_bytes(gathered), parts);
  if (gathered.data() != target.data()) {
    stream_.copy(target.data(), gathered.data(), static_cast<Bytes>(target.size_bytes()),
                 device::Copy::host_to_device);
    stream_.synchronize();
  }
  return target;
}

template <class T>
void WorkingCopy<T>::release(int layer) {
  auto const slot =
      std::ranges::find_if(slots_, [layer](Slot const& s) { return s.layer == layer; });
  require(slot != slots_.end(), "WorkingCopy: release of a layer that is not held");
  slot->layer = -1;
}

template class WorkingCopy<float>;
template class WorkingCopy<bfloat16>;
template class WorkingCopy<float16>;

}  // namespace offstage::state
