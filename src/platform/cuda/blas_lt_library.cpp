#include "platform/cuda/blas_lt_library.hpp"

#ifdef OFFSTAGE_HAVE_CUDA

#include <dlfcn.h>
#include <fmt/format.h>

#include <vector>

#include "platform/cuda/check.hpp"

namespace offstage::cuda {
namespace {

#define OFFSTAGE_TEXT_OF(number) #number
#define OFFSTAGE_TEXT(macro) OFFSTAGE_TEXT_OF(macro)
/// Whole in every program, where jobs/carry-packages.sh reads it; a compiler may else cut it up.
[[gnu::used]] constexpr char soname[] = "libcublasLt.so." OFFSTAGE_TEXT(CUBLAS_VER_MAJOR);
#undef OFFSTAGE_TEXT
#undef OFFSTAGE_TEXT_OF

/// What dlopen gave.
class Handle {
 public:
  // Never closed: its end would come in the midst of that of CUDA, and the next stream would load it again.
  explicit Handle(std::vector<char const*> const& files) {
    std::string reasons;
    for (char const* const file : files) {
      file_ = file;
      handle_ = dlopen(file, RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) {
        return;
      }
      char const* const reason = dlerror();
      reasons += reason != nullptr ? fmt::format("{}; ", reason)
                                   : fmt::format("{}: the system does not say why; ", file);
    }
    throw CudaError{
        fmt::format("cuBLASLt cannot be loaded: {}install cuBLAS {}, which CUDA toolkits and "
                    "PyTorch bring, or name its directory in LD_LIBRARY_PATH",
                    reasons, CUBLAS_VER_MAJOR)};
  }

  template <class Function>
  void find(Function& function, char const* name) const {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (function == nullptr) {
      throw CudaError{fmt::format("{} has no {}; offstage was built with cuBLAS {}.{}", file_, name,
                                  CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR)};
    }
  }

 private:
  std::string file_;
  void* handle_{};
};

}  // namespace

BlasLtFunctions load_blas_lt(std::string const& file) {
  std::string const built_with = fmt::format("{}/{}", OFFSTAGE_BLAS_LT_DIRECTORY, soname);
  std::vector<char const*> files{file.c_str()};
  if (file.empty()) {
    files = {soname, built_with.c_str()};
  }
  Handle const library{files};
  BlasLtFunctions lt;
  library.find(lt.get_status_name, "cublasLtGetStatusName");
  library.find(lt.create, "cublasLtCreate");
  library.find(lt.destroy, "cublasLtDestroy");
  library.find(lt.matrix_layout_create, "cublasLtMatrixLayoutCreate");
  library.find(lt.matrix_layout_destroy, "cublasLtMatrixLayoutDestroy");
  library.find(lt.matmul_desc_create, "cublasLtMatmulDescCreate");
  library.find(lt.matmul_desc_destroy, "cublasLtMatmulDescDestroy");
  library.find(lt.matmul_desc_set_attribute, "cublasLtMatmulDescSetAttribute");
  library.find(lt.matmul_preference_create, "cublasLtMatmulPreferenceCreate");
  library.find(lt.matmul_preference_destroy, "cublasLtMatmulPreferenceDestroy");
  library.find(lt.matmul_preference_set_attribute, "cublasLtMatmulPreferenceSetAttribute");
  library.find(lt.matmul_algo_get_heuristic, "cublasLtMatmulAlgoGetHeuristic");
  library.find(lt.matmul, "cublasLtMatmul");
  return lt;
}

}  // namespace offstage::cuda

#endif
