#include "model/block_traffic.hpp"

#include "base/dtype.hpp"
#include "base/error.hpp"

namespace offstage::model {
namespace {

std::size_t index(int of) {
  return static_cast<std::size_t>(of);
}

}  // namespace

BlockTraffic::BlockTraffic(BlockRing const& ring, std::span<SlabParts const> slabs,
                           device::Stream& stream)
    : ring_{ring},
      slabs_{slabs.begin(), slabs.end()},
      stream_{stream},
      leaves_{ring.any_leaves()},
      moved_(slabs.size()) {}

template <class Each>
void BlockTraffic::for_each_leaving(int block, Each const& each) const {
  BlockFates const fates = ring_.fates(block);
  for (Part const part : all_parts) {
    if (fates[part] == Fate::leave) {
      each(part, slabs_[index(ring_.copy(block, part))][static_cast<std::size_t>(part)]);
    }
  }
}

void BlockTraffic::wait_for(Points& points) {
  for (auto const& point : points) {
    state::queue_behind(stream_, *point);
  }
  points.clear();
}

void BlockTraffic::begin() {
  require(store_ != nullptr || !leaves_, "Transformer: activations that leave need a store");
  for (Points& points : moved_) {
    wait_for(points);
  }
  if (store_ != nullptr) {
    store_->open();
  }
}

void BlockTraffic::before_forward(int block) {
  if (ring_.slab(block) != BlockRing::none) {
    wait_for(moved_[index(ring_.slab(block))]);
  }
}

void BlockTraffic::after_forward(int block) {
  std::shared_ptr<device::Event> made;
  for_each_leaving(block, [&](Part part, std::span<std::byte> memory) {
    if (!made) {
      made = stream_.record();
    }
    moved_[index(ring_.slab(block))].push_back(
        store_->put(block, static_cast<int>(part), memory, made));
  });
}

void BlockTraffic::before_backward(int block) {
  before_forward(block);
}

void BlockTraffic::after_backward(int block) {
  int const slab = ring_.slab(block);
  int const next = slab == BlockRing::none ? BlockRing::none : ring_.before(block);
  if (next == BlockRing::none) {
    return;
  }
  std::shared_ptr<device::Event> freed;
  for_each_leaving(next, [&](Part part, std::span<std::byte> memory) {
    if (!freed) {
      freed = stream_.record();
    }
    moved_[index(slab)].push_back(store_->take(next, static_cast<int>(part), memory, freed));
  });
}

template <class T>
std::vector<state::LeavingPart> leaving_parts(Dims const& dims, BlockRing const& ring) {
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

template std::vector<state::LeavingPart> leaving_parts<float>(Dims const&, BlockRing const&);
template std::vector<state::LeavingPart> leaving_parts<bfloat16>(Dims const&, BlockRing const&);
template std::vector<state::LeavingPart> leaving_parts<float16>(Dims const&, BlockRing const&);
template std::vector<state::LeavingPart> leaving_parts<double>(Dims const&, BlockRing const&);

}  // namespace offstage::model
