#include <cublasLt.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "cuda_on_cpu/runtime.hpp"
#include "platform/cuda/blas_lt_library.hpp"

/// cuBLASLt's functions that the project calls: products by columns, summed in FP32 in order,
/// rounded once. load_blas_lt() stands here too, so that no program opens the real library.
namespace {

using offstage::bfloat16;
using offstage::float16;

struct Description {
  cublasOperation_t transpose_a = CUBLAS_OP_N;
  cublasOperation_t transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  cudaDataType_t bias_type = CUDA_R_32F;
  void const* bias{};
};

struct Layout {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t leading;
};

/// What stands in an algorithm that the heuristic gave.
constexpr std::uint64_t mark = 0x0FF57A6E;

float element(cudaDataType_t type, void const* values, std::size_t index) {
  switch (type) {
    case CUDA_R_32F:
      return static_cast<float const*>(values)[index];
    case CUDA_R_16BF:
      return offstage::load(static_cast<bfloat16 const*>(values)[index]);
    default:
      return offstage::load(static_cast<float16 const*>(values)[index]);
  }
}

void set_element(cudaDataType_t type, void* values, std::size_t index, float value) {
  switch (type) {
    case CUDA_R_32F:
      static_cast<float*>(values)[index] = value;
      return;
    case CUDA_R_16BF:
      static_cast<bfloat16*>(values)[index] = offstage::store<bfloat16>(value);
      return;
    default:
      static_cast<float16*>(values)[index] = offstage::store<float16>(value);
  }
}

/// op(matrix), by columns and dense.
std::vector<float> widened(Layout const& layout, void const* values, bool transpose) {
  std::vector<float> all(layout.rows * layout.columns);
  for (std::uint64_t column = 0; column < layout.columns; ++column) {
    for (std::uint64_t row = 0; row < layout.rows; ++row) {
      all[transpose ? row * layout.columns + column : column * layout.rows + row] =
          element(layout.type, values, column * static_cast<std::uint64_t>(layout.leading) + row);
    }
  }
  return all;
}

struct Call {
  Description description;
  Layout a, b, d;
  void const* a_values;
  void const* b_values;
  void* d_values;
  bool add;  ///< to what D holds
};

bool is_product(Call const& call) {
  bool const transpose_a = call.description.transpose_a == CUBLAS_OP_T;
  bool const transpose_b = call.description.transpose_b == CUBLAS_OP_T;
  return (transpose_a ? call.a.columns : call.a.rows) == call.d.rows &&
         (transpose_b ? call.b.rows : call.b.columns) == call.d.columns &&
         (transpose_a ? call.a.rows : call.a.columns) ==
             (transpose_b ? call.b.columns : call.b.rows);
}

void multiply(Call const& call) {
  bool const transpose_a = call.description.transpose_a == CUBLAS_OP_T;
  bool const transpose_b = call.description.transpose_b == CUBLAS_OP_T;
  auto const a = widened(call.a, call.a_values, transpose_a);
  auto const b = widened(call.b, call.b_values, transpose_b);
  std::uint64_t const rows = call.d.rows;
  std::uint64_t const inner = transpose_a ? call.a.rows : call.a.columns;
  std::vector<float> sums(rows);
  for (std::uint64_t column = 0; column < call.d.columns; ++column) {
    std::fill(sums.begin(), sums.end(), 0.0F);
    for (std::uint64_t k = 0; k < inner; ++k) {
      float const factor = b[column * inner + k];
      for (std::uint64_t row = 0; row < rows; ++row) {
        sums[row] += a[k * rows + row] * factor;
      }
    }
    for (std::uint64_t row = 0; row < rows; ++row) {
      float const bias = call.description.epilogue == CUBLASLT_EPILOGUE_BIAS
                             ? element(call.description.bias_type, call.description.bias, row)
                             : 0.0F;
      auto const at = column * static_cast<std::uint64_t>(call.d.leading) + row;
      float const before = call.add ? element(call.d.type, call.d_values, at) : 0.0F;
      set_element(call.d.type, call.d_values, at, sums[row] + before + bias);
    }
  }
}

}  // namespace

extern "C" {

char const* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
         : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                 : "CUBLAS_STATUS_INVALID_VALUE";
}
std::size_t cublasLtGetVersion() {
  return CUBLAS_VERSION;
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new std::uint64_t{mark});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<std::uint64_t*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t leading) {
  if (rows == 0 || columns == 0 || leading < static_cast<std::int64_t>(rows)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, leading});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout const*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *description = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete reinterpret_cast<Description*>(description);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              void const* value, std::size_t bytes) {
  auto& to = *reinterpret_cast<Description*>(description);
  auto const set = [&](auto& member) {
    if (bytes != sizeof member) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    std::memcpy(&member, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(to.transpose_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(to.transpose_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(to.epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(to.bias);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set(to.bias_type);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new std::uint64_t{mark});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<std::uint64_t*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t /*preference*/,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    void const* /*value*/, std::size_t bytes) {
  bool const is_size = attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
  return bytes == (is_size ? 8U : 4U) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t /*c*/, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t /*preference*/, int wanted,
    cublasLtMatmulHeuristicResult_t results[], int* found) {
  *found = 0;
  Call const call{*reinterpret_cast<Description const*>(description),
                  *reinterpret_cast<Layout const*>(a),
                  *reinterpret_cast<Layout const*>(b),
                  *reinterpret_cast<Layout const*>(d),
                  nullptr,
                  nullptr,
                  nullptr,
                  false};
  if (!is_product(call)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (call.a.type == CUDA_R_32F && call.d.type != CUDA_R_32F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  // Some shapes, as with the real one, come without an epilogue; which ones is not told.
  bool const no_bias = call.d.rows % 2 == 1;
  if (wanted > 0 && !(no_bias && call.description.epilogue == CUBLASLT_EPILOGUE_BIAS)) {
    results[0] = {};
    results[0].algo.data[0] = mark;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *found = 1;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t description,
                              void const* alpha, void const* a, cublasLtMatrixLayout_t a_layout,
                              void const* b, cublasLtMatrixLayout_t b_layout, void const* beta,
                              void const* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              cublasLtMatmulAlgo_t const* algorithm, void* /*workspace*/,
                              std::size_t /*workspace_bytes*/, cudaStream_t stream) {
  Call const call{*reinterpret_cast<Description const*>(description),
                  *reinterpret_cast<Layout const*>(a_layout),
                  *reinterpret_cast<Layout const*>(b_layout),
                  *reinterpret_cast<Layout const*>(d_layout),
                  a,
                  b,
                  d,
                  *static_cast<float const*>(beta) == 1.0F};
  if (!is_product(call) || algorithm == nullptr || algorithm->data[0] != mark ||
      *static_cast<float const*>(alpha) != 1.0F ||
      (!call.add && *static_cast<float const*>(beta) != 0.0F) ||
      (call.add && (c != d || c_layout != d_layout))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  // Some, as with the real one, are refused although the heuristic has offered them.
  bool const refused = call.description.epilogue == CUBLASLT_EPILOGUE_BIAS && call.d.rows % 8 == 6;
  if (refused) {
    offstage::cuda_on_cpu::refuse_product();
    return call.d.rows % 16 == 6 ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_NOT_SUPPORTED;
  }
  using offstage::cuda_on_cpu::run_kernel;
  offstage::cuda_on_cpu::enqueue(stream, [call] { run_kernel([&] { multiply(call); }); });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"

offstage::cuda::BlasLtFunctions offstage::cuda::load_blas_lt(std::string const& /*file*/) {
  return {.get_status_name = cublasLtGetStatusName,
          .get_version = cublasLtGetVersion,
          .create = cublasLtCreate,
          .destroy = cublasLtDestroy,
          .matrix_layout_create = cublasLtMatrixLayoutCreate,
          .matrix_layout_destroy = cublasLtMatrixLayoutDestroy,
          .matmul_desc_create = cublasLtMatmulDescCreate,
          .matmul_desc_destroy = cublasLtMatmulDescDestroy,
          .matmul_desc_set_attribute = cublasLtMatmulDescSetAttribute,
          .matmul_preference_create = cublasLtMatmulPreferenceCreate,
          .matmul_preference_destroy = cublasLtMatmulPreferenceDestroy,
          .matmul_preference_set_attribute = cublasLtMatmulPreferenceSetAttribute,
          .matmul_algo_get_heuristic = cublasLtMatmulAlgoGetHeuristic,
          .matmul = cublasLtMatmul};
}
