#pragma once

#include "base/dtype.hpp"

// Explicit instantiations, a line per template, at the end of the source that defines it:
//
//   OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, rmsnorm_forward)
//   OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_RUN_TYPES, RunMemory)
//
// The first argument is a list of types, the second the template. Template arguments that come
// before the list's may follow. The signature is the one of the declaration, so that the name of a
// function must belong to one template alone.

#define OFFSTAGE_INSTANTIATE(types, ...) types(OFFSTAGE_INSTANTIATE_FUNCTION_, __VA_ARGS__)
#define OFFSTAGE_INSTANTIATE_CLASS(types, ...) types(OFFSTAGE_INSTANTIATE_CLASS_, __VA_ARGS__)
#define OFFSTAGE_INSTANTIATE_STRUCT(types, ...) types(OFFSTAGE_INSTANTIATE_STRUCT_, __VA_ARGS__)

#define OFFSTAGE_INSTANTIATE_FUNCTION_(name, ...) \
  template decltype(name<__VA_ARGS__>) name<__VA_ARGS__>;
#define OFFSTAGE_INSTANTIATE_STRUCT_(name, ...) template struct name<__VA_ARGS__>;
#define OFFSTAGE_INSTANTIATE_CLASS_(name, ...) template class name<__VA_ARGS__>;

/// The types of a working copy, activations and gradients: those of DType. A list calls its first
/// argument once per type, with its other arguments before the type.
#define OFFSTAGE_RUN_TYPES(INSTANTIATE, ...) \
  INSTANTIATE(__VA_ARGS__, float)            \
  OFFSTAGE_HALF_TYPES(INSTANTIATE, __VA_ARGS__)

/// The types of a run, and the type in which tests compute what others are compared with.
#define OFFSTAGE_ALL_TYPES(INSTANTIATE, ...) \
  INSTANTIATE(__VA_ARGS__, double)           \
  OFFSTAGE_RUN_TYPES(INSTANTIATE, __VA_ARGS__)

/// The types of 16 bits.
#define OFFSTAGE_HALF_TYPES(INSTANTIATE, ...) \
  INSTANTIATE(__VA_ARGS__, bfloat16)          \
  INSTANTIATE(__VA_ARGS__, float16)
