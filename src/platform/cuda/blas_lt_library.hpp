#pragma once

#ifdef OFFSTAGE_HAVE_CUDA

#include <cublasLt.h>

#include <string>

namespace offstage::cuda {

/// Functions of libcublasLt that Offstage calls.
struct BlasLtFunctions {
  decltype(&cublasLtGetStatusName) get_status_name{};
  decltype(&cublasLtGetVersion) get_version{};
  decltype(&cublasLtCreate) create{};
  decltype(&cublasLtDestroy) destroy{};
  decltype(&cublasLtMatrixLayoutCreate) matrix_layout_create{};
  decltype(&cublasLtMatrixLayoutDestroy) matrix_layout_destroy{};
  decltype(&cublasLtMatmulDescCreate) matmul_desc_create{};
  decltype(&cublasLtMatmulDescDestroy) matmul_desc_destroy{};
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set_attribute{};
  decltype(&cublasLtMatmulPreferenceCreate) matmul_preference_create{};
  decltype(&cublasLtMatmulPreferenceDestroy) matmul_preference_destroy{};
  decltype(&cublasLtMatmulPreferenceSetAttribute) matmul_preference_set_attribute{};
  decltype(&cublasLtMatmulAlgoGetHeuristic) matmul_algo_get_heuristic{};
  decltype(&cublasLtMatmul) matmul{};
};

/// libcublasLt is loaded and not linked, as its start takes 0.1 s and 200 MB of host memory. From
/// this file, or where that is empty from where the system finds the major version that offstage
/// was built with, or else from where that was then. It stays until the process ends; further calls
/// find it loaded.
/// Threads: any.
/// Errors:  CudaError that names the file: it is not there, or lacks a function.
[[nodiscard]] BlasLtFunctions load_blas_lt(std::string const& file = "");

}  // namespace offstage::cuda

#endif
