#include "model/block_traffic.hpp"

#include <algorithm>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/instantiate.hpp"

namespace offstage::model {
namespace {

std::size_t index(int of) {
  return static_cast<std::size_t>(of);
}

}  // namespace

BlockTraffic::BlockTraffic(BlockRing const& ring, std::span<SlabParts const> slabs, bool serial,
                           device::Stream& stream)
    : ring_{ring},
      slabs_{slabs.begin(), slabs.end()},
      stream_{stream},
      leaves_{ring.any_leaves()},
      serial_{serial},
      moved_(slabs.size()) {}

template <class Each>
void BlockTraffic::for_each_leaving(int block, BlockLayer layer, Each const& each) const {
  BlockFates const fates = ring_.fates(block);
  for (Part const part : all_parts) {
    if (fates[part] == Fate::leave && layer_of(part) == layer) {
      each(part, slabs_[index(ring_.copy(block, part))][static_cast<std::size_t>(part)]);
    }
  }
}

BlockTraffic::Points& BlockTraffic::moved(int slab, BlockLayer layer) {
  return moved_[index(slab)][static_cast<std::size_t>(layer)];
}

void BlockTraffic::wait_for(Points& points) {
  for (auto const& point : points) {
    state::queue_behind(stream_, *point);
  }
  points.clear();
}

void BlockTraffic::begin() {
  require(store_ != nullptr || !leaves_, "Transformer: activations that leave need a store");
  for (auto& slab : moved_) {
    std::ranges::for_each(slab, [this](Points& points) { wait_for(points); });
  }
  if (store_ != nullptr) {
    store_->open();
  }
}

void BlockTraffic::before_forward(int block, BlockLayer layer) {
  if (ring_.slab(block) != BlockRing::none) {
    wait_for(moved(ring_.slab(block), layer));
  }
}

void BlockTraffic::after_forward(int block, BlockLayer layer) {
  std::shared_ptr<device::Event> made;
  for_each_leaving(block, layer, [&](Part part, std::span<std::byte> memory) {
    if (!made) {
      made = stream_.record();
    }
    moved(ring_.slab(block), layer)
        .push_back(store_->put(block, static_cast<int>(part), memory, made));
  });
  if (serial_ && ring_.slab(block) != BlockRing::none) {
    wait_for(moved(ring_.slab(block), layer));
  }
}

void BlockTraffic::before_backward(int block, BlockLayer layer) {
  before_forward(block, layer);
}

void BlockTraffic::after_backward(int block, BlockLayer layer) {
  int const slab = ring_.slab(block);
  int const next = slab == BlockRing::none ? BlockRing::none : ring_.before(block);
  if (next == BlockRing::none) {
    return;
  }
  std::shared_ptr<device::Event> freed;
  for_each_leaving(next, layer, [&](Part part, std::span<std::byte> memory) {
    if (!freed) {
      freed = stream_.record();
    }
    moved(slab, layer).push_back(store_->take(next, static_cast<int>(part), memory, freed));
  });
  if (serial_) {
    wait_for(moved(slab, layer));
  }
}

template <class T>
std::vector<state::LeavingPart> leaving_parts_of(Dims const& dims, BlockRing const& ring) {
  std::vector<state::LeavingPart> parts;
  for (int block = 0; block < ring.blocks(); ++block) {
    for (Part const part : all_parts) {
      if (ring.fates(block)[part] == Fate::leave) {
        parts.push_back({block, static_cast<int>(part), part_bytes<T>(dims, part)});
      }
    }
  }
  return parts;
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, leaving_parts_of)

}  // namespace offstage::model
