// A library of the name of NVIDIA's driver, which knows of no GPU and loads whatever kernel it is
// given: with it cuDNN chooses and builds its plans, and says what they take. It stops at the first
// that it misses of these functions.

namespace {

constexpr int success = 0;
constexpr int no_device = 100;

int some_object;

}  // namespace

extern "C" {

// NOLINTBEGIN(readability-identifier-naming)
int cuLibraryLoadData(void** library) {
  *library = &some_object;
  return success;
}
int cuLibraryGetKernel(void** kernel) {
  *kernel = &some_object;
  return success;
}

#define OFFSTAGE_REFUSES(function) \
  int function() {                 \
    return no_device;              \
  }
OFFSTAGE_REFUSES(cuCtxGetCurrent)
OFFSTAGE_REFUSES(cuCtxGetLimit)
OFFSTAGE_REFUSES(cuCtxPopCurrent)
OFFSTAGE_REFUSES(cuCtxPushCurrent)
OFFSTAGE_REFUSES(cuDeviceGet)
OFFSTAGE_REFUSES(cuDeviceGetCount)
OFFSTAGE_REFUSES(cuDriverGetVersion)
OFFSTAGE_REFUSES(cuGetErrorName)
OFFSTAGE_REFUSES(cuGetErrorString)
OFFSTAGE_REFUSES(cuInit)
OFFSTAGE_REFUSES(cuKernelGetAttribute)
OFFSTAGE_REFUSES(cuKernelSetAttribute)
OFFSTAGE_REFUSES(cuLaunchCooperativeKernel)
OFFSTAGE_REFUSES(cuLaunchKernel)
OFFSTAGE_REFUSES(cuLaunchKernelEx)
OFFSTAGE_REFUSES(cuLibraryLoadFromFile)
OFFSTAGE_REFUSES(cuLibraryUnload)
OFFSTAGE_REFUSES(cuLinkAddData)
OFFSTAGE_REFUSES(cuLinkComplete)
OFFSTAGE_REFUSES(cuLinkCreate)
OFFSTAGE_REFUSES(cuLinkDestroy)
OFFSTAGE_REFUSES(cuOccupancyMaxPotentialClusterSize)
OFFSTAGE_REFUSES(cuStreamGetCtx)
#undef OFFSTAGE_REFUSES
// NOLINTEND(readability-identifier-naming)
}
