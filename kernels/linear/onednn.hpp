#pragma once

#include <oneapi/dnnl/dnnl.hpp>

namespace offstage::kernels {

/// A product of three matrices with oneDNN 2 or 3, whose constructors differ. With `allow_empty` it
/// is empty if oneDNN has no such product on this CPU. Errors: dnnl::error.
inline dnnl::matmul::primitive_desc describe_product(dnnl::engine const& engine,
                                                     dnnl::memory::desc const& a,
                                                     dnnl::memory::desc const& b,
                                                     dnnl::memory::desc const& c,
                                                     dnnl::primitive_attr const& attributes = {},
                                                     bool allow_empty = false) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine, a, b, c, attributes, allow_empty};
#else
  return {{a, b, c}, attributes, engine, allow_empty};
#endif
}

}  // namespace offstage::kernels
