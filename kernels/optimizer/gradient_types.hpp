#pragma once

/// The types of Accumulate and of conversions: the sum's, then the summand's
/// (base/instantiate.hpp).
#define OFFSTAGE_SUM_TYPES(INSTANTIATE, ...)   \
  INSTANTIATE(__VA_ARGS__, float, float)       \
  INSTANTIATE(__VA_ARGS__, float, bfloat16)    \
  INSTANTIATE(__VA_ARGS__, float, float16)     \
  INSTANTIATE(__VA_ARGS__, bfloat16, float)    \
  INSTANTIATE(__VA_ARGS__, float16, float)     \
  INSTANTIATE(__VA_ARGS__, bfloat16, bfloat16) \
  INSTANTIATE(__VA_ARGS__, float16, float16)
