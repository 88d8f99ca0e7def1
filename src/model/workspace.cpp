#include "model/workspace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/instantiate.hpp"
#include "kernels/pointwise/rope.hpp"
#include "model/rope_scaling.hpp"
#include "model/slab.hpp"

namespace offstage::model {

WorkspaceDemand workspace_demand(std::vector<state::LayerLayout> const& layers, bool tied_head,
                                 bool attention_buffer, BlockRing ring,
                                 VerticalDemand const& vertical) {
  WorkspaceDemand demand{.ring = std::move(ring), .vertical = vertical};
  int number = 0;
  for (state::LayerLayout const& layer : layers) {
    bool const is_attention = attention_buffer && layer.block >= 0 &&
                              number == state::attention_layer(static_cast<int>(layer.block));
    auto& elements = tied_head && number == 0 ? demand.tied_elements
                     : is_attention           ? demand.attention_elements
                                              : demand.layer_elements;
    elements = std::max(elements, layer.padded_elements());
    ++number;
  }
  return demand;
}

// Allocates one buffer for the parts that `lay_out(Slab&)` takes. The error names `purpose` if the
// device has no room for it.
template <class T>
template <class LayOut>
auto Workspace<T>::allocate(device::Buffer& memory, std::string const& purpose, LayOut&& lay_out) {
  Slab measure;
  (void)lay_out(measure);
  memory = device_.allocate(measure.used(), purpose);
  Slab slab{memory};
  return lay_out(slab);
}

template <class T>
Workspace<T>::Workspace(Dims const& dims, WorkspaceDemand const& demand, device::Device& device)
    : dims_{dims}, device_{device} {
  std::int64_t const rows = dims.rows();
  std::int64_t const all_rows = rows * demand.vertical.micro_batches;
  tokens = allocate("the tokens of a micro-batch",
                    [&](Slab& slab) { return slab.take<std::int32_t>(all_rows); });
  documents = allocate("the places of a micro-batch's documents", [&](Slab& slab) {
    std::int64_t const places = dims.documents_apart ? all_rows : 0;
    auto const begins = slab.take<std::int32_t>(places);
    auto const ends = slab.take<std::int32_t>(places);
    return DocumentRows{begins, ends, slab.take<std::int32_t>(dims.has_positions() ? places : 0)};
  });
  rope = allocate(rope_memory_, "the tables of RoPE", [&](Slab& slab) {
    std::int64_t const angles = dims.has_positions() ? 0 : dims.T * dims.D / 2;
    auto const cosine = slab.take<Real<T>>(angles);
    auto const sine = slab.take<Real<T>>(angles);
    return RopeTables<T>{cosine, sine};
  });
  allocate("the gradients of layers", [&](Slab& slab) {
    tied_gradient = slab.take<T>(demand.tied_elements);
    for (auto& gradient : gradients.in_turn) {
      gradient = slab.take<T>(demand.layer_elements);
    }
    Bytes const sum_begins = demand.vertical.tensors > 0 ? slab.used() : 0;
    gradients.attention = slab.take<T>(demand.attention_elements);
    head_sum = slab.take_again<Real<T>>(sum_begins, head_sum_elements<T>(dims));
    return head_sum;
  });
  if (demand.vertical.tensors == 0) {
    dx = allocate("the gradient of activations",
                  [&](Slab& slab) { return slab.take<T>(rows * dims.C); });
  }
  head_rows = allocate("the losses of a micro-batch", [&](Slab& slab) {
    auto const loss = slab.take<double>(all_rows);
    return HeadRows{.loss = loss, .targets = slab.take<std::int32_t>(all_rows)};
  });
  // All tensors are one allocation, and all tables: a GPU rounds each up to pages of 2 MiB, and
  // there may be thousands.
  auto const take_all = [](Slab& slab, int count, std::int64_t elements) {
    std::vector<std::span<T>> all;
    for (int i = 0; i < count; ++i) {
      all.push_back(slab.take<T>(elements));
    }
    return all;
  };
  tensors =
      allocate(tensor_memory_, "the inputs of blocks, of a step's micro-batches",
               [&](Slab& slab) { return take_all(slab, demand.vertical.tensors, rows * dims.C); });
  tables = allocate(
      table_memory_, "the gradients of the tied embedding, of a step's micro-batches",
      [&](Slab& slab) { return take_all(slab, demand.vertical.tables, demand.tied_elements); });
  allocate("scratch memory of blocks, logits and activations of the head", [&](Slab& slab) {
    scratch = lay_out_scratch<T>(dims, slab);
    Bytes const branch = rows * dims.C * static_cast<Bytes>(sizeof(T));
    head = slab.again(branch, [&](Slab& same) { return lay_out_head<T>(dims, same); });
    return head;
  });
  allocate_slabs(demand.ring);
  allocate_blocks(demand.ring);
}

template <class T>
void Workspace<T>::allocate_slabs(BlockRing const& ring) {
  for (int slab = 0; slab < ring.slabs(); ++slab) {
    slabs.push_back(allocate("activations of a block on its way", [&](Slab& memory) {
      std::array<std::span<std::byte>, part_count> parts;
      for (Part const part : all_parts) {
        BlockActivations<T> a;
        if (ring.copies(part) > slab) {
          parts[static_cast<std::size_t>(part)] =
              lay_out_part(dims_, part, memory, a, {scratch.d_hidden});
        }
      }
      return parts;
    }));
  }
}

template <class T>
void Workspace<T>::allocate_blocks(BlockRing const& ring) {
  for (int block = 0; block < ring.blocks(); ++block) {
    auto& a = blocks.emplace_back();
    auto const place = [&](Part part, Slab& own) {
      if (int const copy = ring.copy(block, part); copy != BlockRing::none) {
        auto const& slab = slabs[static_cast<std::size_t>(copy)];
        Slab there{slab[static_cast<std::size_t>(part)]};
        lay_out_part(dims_, part, there, a, {scratch.d_hidden});
      } else {
        lay_out_part(dims_, part, own, a);
      }
      return 0;
    };
    allocate(fmt::format("activations of block {}", block), [&](Slab& own) {
      for (Part const part : all_parts) {
        if (part != Part::input) {
          place(part, own);
        }
      }
      return 0;
    });
    allocate(fmt::format("the input of block {}", block),
             [&](Slab& own) { return place(Part::input, own); });
    if (dims_.documents_apart) {
      auto const rows = static_cast<std::size_t>(dims_.rows());
      a.documents = {documents.begins.first(rows), documents.ends.first(rows)};
    }
  }
}

template <class T>
std::span<std::byte> Workspace<T>::idle_memory() const {
  auto const largest = std::ranges::max_element(memory_, {}, &device::Buffer::size);
  return largest->template as<std::byte>();
}

template <class T>
void Workspace<T>::fill_rope_tables(state::ModelShape const& shape, device::Stream& stream) {
  std::size_t const angles = rope.cosine.size();
  if (angles == 0) {
    return;
  }
  std::vector<double> cosine(angles);
  std::vector<double> sine(angles);
  kernels::rope_tables(dims_.T, dims_.D, shape.rope_theta, cosine, sine, scaling_of(shape));
  auto const upload = [&](std::vector<double> const& table, std::span<Real<T>> target) {
    std::vector<Real<T>> rounded(table.size());
    std::ranges::transform(table, rounded.begin(),
                           [](double value) { return static_cast<Real<T>>(value); });
    stream.copy(target.data(), rounded.data(), static_cast<Bytes>(target.size_bytes()),
                device::Copy::host_to_device);
    stream.synchronize();
  };
  upload(cosine, rope.cosine);
  upload(sine, rope.sine);
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_ALL_TYPES, Workspace)

}  // namespace offstage::model
