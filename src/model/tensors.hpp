#pragma once

#include <span>

#include "model/dims.hpp"
#include "state/model_shape.hpp"

namespace offstage::model {

// Views into one layer: its parameters (Element = T const) or their gradient (T). A tensor that the
// family does not have is empty.

template <class Element>
struct LinearTensors {
  std::span<Element> weight;  ///< (out, in), or (in, out) in gpt2
  std::span<Element> bias;    ///< (out)
};

template <class Element>
struct NormTensors {
  std::span<Element> weight;  ///< (C)
  std::span<Element> bias;    ///< (C), empty in an RMSNorm
};

template <class Element>
struct EmbeddingTensors {
  std::span<Element> table;      ///< (V, C)
  std::span<Element> positions;  ///< (max_sequence, C), gpt2 only
};

template <class Element>
struct AttentionTensors {
  NormTensors<Element> norm;
  NormTensors<Element> q_norm, k_norm;  ///< (D) each, or (H D) and (K D)
  LinearTensors<Element> qkv;           ///< C to (H + 2 K) D: q, k, v
  LinearTensors<Element> o;             ///< H D to C
};

template <class Element>
struct MlpTensors {
  NormTensors<Element> norm;
  LinearTensors<Element> up;    ///< C to 2 F: gate, up; in gpt2 C to F
  LinearTensors<Element> down;  ///< F to C
};

template <class Element>
struct HeadTensors {
  NormTensors<Element> norm;
  std::span<Element> matrix;  ///< (V, C)
};

/// One layer's memory, parameters or gradient, and the places of tensors in it.
template <class Element>
class LayerView {
 public:
  /// `memory` is at least layout.elements long; `layout` must outlive the view.
  LayerView(Dims const& dims, state::LayerLayout const& layout, std::span<Element> memory)
      : dims_{dims}, layout_{layout}, memory_{memory} {}

  // Errors: PreconditionError if the layer is of another kind, or if tensors that one product
  // computes together do not stand side by side.
  [[nodiscard]] EmbeddingTensors<Element> embedding() const;
  [[nodiscard]] AttentionTensors<Element> attention() const;
  [[nodiscard]] MlpTensors<Element> mlp() const;
  /// `table` is the embedding's if the head is tied; else empty, and the layer has its own matrix.
  [[nodiscard]] HeadTensors<Element> head(std::span<Element> table) const;

 private:
  /// The tensors whose names end with these suffixes, which are neighbours, as one.
  template <class... Suffixes>
  [[nodiscard]] std::span<Element> at(Suffixes... suffixes) const;

  Dims dims_;
  state::LayerLayout const& layout_;
  std::span<Element> memory_;
};

}  // namespace offstage::model
