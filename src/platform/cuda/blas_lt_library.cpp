#include "platform/cuda/blas_lt_library.hpp"

#ifdef OFFSTAGE_HAVE_CUDA

#include <fmt/format.h>

#include <source_location>
#include <string>
#include <vector>

#include "base/shared_library.hpp"
#include "platform/cuda/check.hpp"

namespace offstage::cuda {
namespace {

#define OFFSTAGE_TEXT_OF(number) #number
#define OFFSTAGE_TEXT(macro) OFFSTAGE_TEXT_OF(macro)
/// Whole in every program, where jobs/carry-packages.sh reads it; a compiler may else cut it up.
[[gnu::used]] constexpr char soname[] = "libcublasLt.so." OFFSTAGE_TEXT(CUBLAS_VER_MAJOR);
#undef OFFSTAGE_TEXT
#undef OFFSTAGE_TEXT_OF

}  // namespace

BlasLtFunctions load_blas_lt(std::string const& file) {
  std::vector<std::string> files{file};
  if (file.empty()) {
    files = {soname, fmt::format("{}/{}", OFFSTAGE_BLAS_LT_DIRECTORY, soname)};
  }
  SharedLibrary const library{files};
  if (!library.is_open()) {
    throw CudaError{
        fmt::format("cuBLASLt cannot be loaded: {}; install cuBLAS {}, which CUDA toolkits and "
                    "PyTorch bring, or name its directory in LD_LIBRARY_PATH",
                    library.reasons(), CUBLAS_VER_MAJOR),
        std::source_location::current(), ExitCode::usage};
  }
  auto const find = [&](auto& function, char const* name) {
    if (!library.find(function, name)) {
      throw CudaError{fmt::format("{} has no {}; offstage was built with cuBLAS {}.{}",
                                  library.file(), name, CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR)};
    }
  };
  BlasLtFunctions lt;
  find(lt.get_status_name, "cublasLtGetStatusName");
  find(lt.get_version, "cublasLtGetVersion");
  find(lt.create, "cublasLtCreate");
  find(lt.destroy, "cublasLtDestroy");
  find(lt.matrix_layout_create, "cublasLtMatrixLayoutCreate");
  find(lt.matrix_layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(lt.matmul_desc_create, "cublasLtMatmulDescCreate");
  find(lt.matmul_desc_destroy, "cublasLtMatmulDescDestroy");
  find(lt.matmul_desc_set_attribute, "cublasLtMatmulDescSetAttribute");
  find(lt.matmul_preference_create, "cublasLtMatmulPreferenceCreate");
  find(lt.matmul_preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(lt.matmul_preference_set_attribute, "cublasLtMatmulPreferenceSetAttribute");
  find(lt.matmul_algo_get_heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(lt.matmul, "cublasLtMatmul");
  return lt;
}

}  // namespace offstage::cuda

#endif
