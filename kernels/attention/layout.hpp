#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "base/error.hpp"
#include "kernels/attention/attention.hpp"

namespace offstage::kernels {

/// Where the rows of attention's tensors start (internal to the room).
class AttentionLayout {
 public:
  /// Errors: PreconditionError if the shape makes no sense.
  explicit AttentionLayout(AttentionShape const& shape) : shape_{shape} {
    require(shape.batch >= 0 && shape.sequence >= 0, "attention: negative size");
    require(shape.heads > 0 && shape.kv_heads > 0 && shape.head_dim > 0,
            "attention: heads, kv_heads and head_dim must be positive");
    require(shape.heads % shape.kv_heads == 0, "attention: heads is no multiple of kv_heads");
    require(shape.window >= 0, "attention: negative window");
  }

  /// Elements of qkv, out and log_sum_exp.
  std::int64_t qkv_size() const { return shape_.batch * shape_.sequence * qkv_stride(); }
  std::int64_t out_size() const { return shape_.batch * shape_.sequence * out_stride(); }
  std::int64_t rows() const { return shape_.batch * shape_.heads * shape_.sequence; }

  /// From a row to the next one of the same head.
  std::int64_t qkv_stride() const { return (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim; }
  std::int64_t out_stride() const { return shape_.heads * shape_.head_dim; }

  /// Offsets of position t of sequence b: of query head h, of the key and value heads it uses, of
  /// its output and of its log-sum-exp.
  std::int64_t query(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return (b * shape_.sequence + t) * qkv_stride() + h * shape_.head_dim;
  }
  std::int64_t key(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return query(b, shape_.heads + h / group(), t);
  }
  std::int64_t value(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return query(b, shape_.heads + shape_.kv_heads + h / group(), t);
  }
  std::int64_t out(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return (b * shape_.sequence + t) * out_stride() + h * shape_.head_dim;
  }
  std::int64_t row(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return (b * shape_.heads + h) * shape_.sequence + t;
  }

  /// The first key that query i of sequence b sees.
  std::int64_t first_key(AttentionDocuments const& documents, std::int64_t b,
                         std::int64_t i) const {
    std::int64_t const document =
        documents.begins.empty()
            ? 0
            : documents.begins[static_cast<std::size_t>(b * shape_.sequence + i)];
    return std::max(document, i + 1 - shape_.reach());
  }

  /// Query heads per key-value head.
  std::int64_t group() const { return shape_.heads / shape_.kv_heads; }

  template <class T>
  static AttentionLayout checked(AttentionForward<T> const& in) {
    AttentionLayout const layout{in.shape};
    require(std::ssize(in.qkv) == layout.qkv_size(), "attention: qkv has the wrong length");
    require(std::ssize(in.out) == layout.out_size(), "attention: out has the wrong length");
    require(std::ssize(in.log_sum_exp) == layout.rows(),
            "attention: log_sum_exp has the wrong length");
    layout.check(in.documents);
    return layout;
  }
  template <class T>
  static AttentionLayout checked(AttentionBackward<T> const& in) {
    AttentionLayout const layout{in.shape};
    require(std::ssize(in.qkv) == layout.qkv_size(), "attention: qkv has the wrong length");
    require(std::ssize(in.out) == layout.out_size(), "attention: out has the wrong length");
    require(std::ssize(in.d_out) == layout.out_size(), "attention: d_out has the wrong length");
    require(std::ssize(in.log_sum_exp) == layout.rows(),
            "attention: log_sum_exp has the wrong length");
    require(std::ssize(in.d_qkv) == layout.qkv_size(), "attention: d_qkv has the wrong length");
    layout.check(in.documents);
    return layout;
  }

 private:
  void check(AttentionDocuments const& documents) const {
    auto const rows = documents.begins.empty() ? 0 : shape_.batch * shape_.sequence;
    require(std::ssize(documents.begins) == rows && std::ssize(documents.ends) == rows,
            "attention: begins or ends of documents have the wrong length");
  }

  AttentionShape shape_;
};

}  // namespace offstage::kernels
