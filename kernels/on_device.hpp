#pragma once

/// The mark of functions that CUDA kernels have too.
#ifdef __CUDACC__
#define OFFSTAGE_ON_DEVICE __host__ __device__
#else
#define OFFSTAGE_ON_DEVICE
#endif
