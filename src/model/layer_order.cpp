#include "model/transformer.hpp"

namespace offstage::model {

LayerOrder layer_order(state::ModelShape const& shape) {
  constexpr int embedding = 0;
  int const head = state::attention_layer(static_cast<int>(shape.layers));
  LayerOrder order;
  for (int layer = embedding; layer <= head; ++layer) {
    order.forward.push_back(layer);
  }
  if (shape.tied_head) {
    order.forward.push_back(embedding);
  }
  // The head's backward is part of forward, and the embedding's needs no parameters.
  for (int layer = head - 1; layer > embedding; --layer) {
    order.backward.push_back(layer);
  }
  return order;
}

}  // namespace offstage::model
