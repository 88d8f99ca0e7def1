#include "model/transformer.hpp"

namespace offstage::model {

LayerOrder layer_order(state::ModelShape const& shape) {
  constexpr int embedding = 0;
  int const head = static_cast<int>(shape.layers) + 1;
  LayerOrder order;
  for (int layer = embedding; layer <= head; ++layer) {
    order.forward.push_back(layer);
    order.backward.push_back(head - layer);
  }
  order.backward.pop_back();  // the embedding's needs no parameters
  if (shape.tied_head) {
    order.forward.push_back(embedding);
    order.backward.insert(order.backward.begin() + 1, embedding);
  }
  return order;
}

}  // namespace offstage::model
