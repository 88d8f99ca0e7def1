#include "platform/cuda/blas_lt.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>

#include "base/error.hpp"
#include "platform/cuda/blas_lt_library.hpp"
#include "platform/cuda/check.hpp"

namespace offstage::cuda {
namespace {

char const* name_of(Element element) {
  switch (element) {
    case Element::f32:
      return "f32";
    case Element::bf16:
      return "bf16";
    case Element::f16:
      break;
  }
  return "f16";
}

}  // namespace

std::string describe(Product const& product) {
  return fmt::format("{} ({}, {}){} x ({}, {}){}{} {} {}", name_of(product.in), product.m,
                     product.k, product.transpose_a ? "^T" : "", product.k, product.n,
                     product.transpose_b ? "^T" : "", product.bias != nullptr ? " with a bias" : "",
                     product.add ? "added to" : "to", name_of(product.out));
}

#ifdef OFFSTAGE_HAVE_CUDA

namespace {

/// Of addresses, that algorithms may ask for; cudaMalloc's have it.
constexpr std::uint32_t most_alignment = 256;

/// Not a TF32 one.
constexpr cublasComputeType_t compute_type = CUBLAS_COMPUTE_32F;

void check_call(BlasLtFunctions const& lt, cublasStatus_t status, char const* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw CudaError{fmt::format("{}: {}", call, lt.get_status_name(status))};
  }
}

void check_call(BlasLtFunctions const& lt, cublasStatus_t status, char const* call,
                Product const& product) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw CudaError{
        fmt::format("{} of {}: {}", call, describe(product), lt.get_status_name(status))};
  }
}

/// Of a call that queued nothing, as the library does not do what it was asked for.
bool is_refusal(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH;
}

/// Of a pointer, with the function that destroys it.
template <class Handle>
using Owner = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;

using Handle = Owner<cublasLtHandle_t>;
using Layout = Owner<cublasLtMatrixLayout_t>;
using Preference = Owner<cublasLtMatmulPreference_t>;

cudaDataType_t type_of(Element element) {
  switch (element) {
    case Element::f32:
      return CUDA_R_32F;
    case Element::bf16:
      return CUDA_R_16BF;
    case Element::f16:
      break;
  }
  return CUDA_R_16F;
}

/// Layout of a matrix that is stored (rows, columns), with rows `stride` apart. cuBLASLt takes
/// matrices by columns, so that it sees the transposed ones: it computes C^T = op(B)^T op(A)^T, B
/// first.
Layout layout_of(BlasLtFunctions const& lt, Element element, std::int64_t rows,
                 std::int64_t columns, std::int64_t stride) {
  cublasLtMatrixLayout_t layout{};
  check_call(lt,
             lt.matrix_layout_create(&layout, type_of(element), static_cast<std::uint64_t>(columns),
                                     static_cast<std::uint64_t>(rows), stride),
             "cublasLtMatrixLayoutCreate");
  return Layout{layout, lt.matrix_layout_destroy};
}

/// What cuBLASLt is told of a product beside its layouts.
class Description {
 public:
  Description(BlasLtFunctions const& lt, Product const& product)
      : lt_{lt}, owner_{nullptr, lt.matmul_desc_destroy} {
    cublasLtMatmulDesc_t description{};
    check_call(lt, lt.matmul_desc_create(&description, compute_type, CUDA_R_32F),
               "cublasLtMatmulDescCreate");
    owner_.reset(description);
    auto const operation = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(CUBLASLT_MATMUL_DESC_TRANSA, operation(product.transpose_b));
    set(CUBLASLT_MATMUL_DESC_TRANSB, operation(product.transpose_a));
    if (product.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(product.out));
      set_bias(product.bias);
    }
  }
  void set_bias(void const* bias) { set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias); }
  [[nodiscard]] cublasLtMatmulDesc_t get() const noexcept { return owner_.get(); }

 private:
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    check_call(lt_, lt_.matmul_desc_set_attribute(owner_.get(), attribute, &value, sizeof value),
               "cublasLtMatmulDescSetAttribute");
  }
  BlasLtFunctions const& lt_;
  Owner<cublasLtMatmulDesc_t> owner_;
};

/// Bytes to which an address is aligned.
std::uint32_t alignment_of(void const* address) {
  auto const bits = std::bit_cast<std::uintptr_t>(address);
  return bits == 0 ? most_alignment
                   : static_cast<std::uint32_t>(
                         std::min<std::uintptr_t>(bits & (~bits + 1), most_alignment));
}

/// What an algorithm may rely on; cuBLASLt has no word for the bias, which counts as part of C.
struct Alignments {
  std::uint32_t a, b, c;

  explicit Alignments(Product const& product)
      : a{alignment_of(product.a)},
        b{alignment_of(product.b)},
        c{std::min(alignment_of(product.c), alignment_of(product.bias))} {}
};

/// All that the choice of an algorithm may depend on, and whether the one chosen is refused.
using Key = std::tuple<Element, Element, bool, bool, bool, bool, std::int64_t, std::int64_t,
                       std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::uint32_t,
                       std::uint32_t, std::uint32_t, std::uint32_t>;
Key key_of(Product const& product) {
  return {product.in,
          product.out,
          product.transpose_a,
          product.transpose_b,
          product.bias,
          product.add,
          product.m,
          product.n,
          product.k,
          product.a_stride,
          product.b_stride,
          product.c_stride,
          alignment_of(product.a),
          alignment_of(product.b),
          alignment_of(product.c),
          alignment_of(product.bias)};
}

struct Plan {
  Plan(BlasLtFunctions const& lt, Product const& product)
      : description{lt, product},
        a{product.transpose_a ? layout_of(lt, product.in, product.k, product.m, product.a_stride)
                              : layout_of(lt, product.in, product.m, product.k, product.a_stride)},
        b{product.transpose_b ? layout_of(lt, product.in, product.n, product.k, product.b_stride)
                              : layout_of(lt, product.in, product.k, product.n, product.b_stride)},
        c{layout_of(lt, product.out, product.m, product.n, product.c_stride)} {}

  Description description;
  Layout a, b, c;
  std::optional<cublasLtMatmulAlgo_t> algorithm;  ///< none: cuBLASLt has none
};

/// What algorithms may be.
Preference preference_for(BlasLtFunctions const& lt, Product const& product,
                          std::size_t workspace) {
  cublasLtMatmulPreference_t created{};
  check_call(lt, lt.matmul_preference_create(&created), "cublasLtMatmulPreferenceCreate");
  Preference preference{created, lt.matmul_preference_destroy};
  auto const set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check_call(
        lt, lt.matmul_preference_set_attribute(preference.get(), attribute, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
  };
  Alignments const alignments{product};
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace));
  // Partial sums stay in FP32, in the workspace; one kernel adds them in their order.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE |
                                 CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments.b);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments.a);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments.c);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments.c);
  return preference;
}

}  // namespace

class BlasLt::Implementation {
 public:
  explicit Implementation(std::span<std::byte> workspace) : workspace_{workspace} {
    cublasLtHandle_t handle{};
    check_call(lt_, lt_.create(&handle), "cublasLtCreate");
    handle_.reset(handle);
  }

  bool multiply(Product const& product, CUstream_st* stream) {
    Plan& plan = plan_for(product);
    if (product.bias == nullptr) {
      if (!plan.algorithm) {
        check_call(lt_, CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic", product);
      }
    } else {
      if (!plan.algorithm) {
        return false;
      }
      plan.description.set_bias(product.bias);
    }
    float const one = 1.0F;
    float const before = product.add ? 1.0F : 0.0F;
    auto const status =
        lt_.matmul(handle_.get(), plan.description.get(), &one, product.b, plan.b.get(), product.a,
                   plan.a.get(), &before, product.c, plan.c.get(), product.c, plan.c.get(),
                   &*plan.algorithm, workspace_.data(), workspace_.size(), stream);
    if (product.bias != nullptr && is_refusal(status)) {
      plan.algorithm.reset();
      return false;
    }
    check_call(lt_, status, "cublasLtMatmul", product);
    if (launches_wait()) {
      Launch{describe(product), stream}.finish();
    }
    return true;
  }

 private:
  Plan& plan_for(Product const& product) {
    require(product.m > 0 && product.n > 0 && product.k > 0, "BlasLt: an empty product");
    Key const key = key_of(product);
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      Plan plan{lt_, product};
      plan.algorithm = choose(product, plan);
      found = plans_.emplace(key, std::move(plan)).first;
    }
    return found->second;
  }

  [[nodiscard]] std::optional<cublasLtMatmulAlgo_t> choose(Product const& product,
                                                           Plan const& plan) const {
    // A bias that is not aligned, or one of a vector, is refused by the call where the heuristic
    // has not.
    if (product.bias != nullptr &&
        (alignment_of(product.bias) < 16 || product.m == 1 || product.n == 1 || product.k == 1)) {
      return std::nullopt;
    }
    Preference const preference = preference_for(lt_, product, workspace_.size());
    std::array<cublasLtMatmulHeuristicResult_t, 8> results{};
    int count = 0;
    auto const status = lt_.matmul_algo_get_heuristic(
        handle_.get(), plan.description.get(), plan.b.get(), plan.a.get(), plan.c.get(),
        plan.c.get(), preference.get(), static_cast<int>(results.size()), results.data(), &count);
    bool const has_none =
        status == CUBLAS_STATUS_NOT_SUPPORTED || (is_refusal(status) && product.bias != nullptr);
    if (!has_none) {
      check_call(lt_, status, "cublasLtMatmulAlgoGetHeuristic", product);
    }
    for (int i = 0; !has_none && i < count; ++i) {
      auto const& result = results[static_cast<std::size_t>(i)];
      if (result.state == CUBLAS_STATUS_SUCCESS) {
        return result.algo;
      }
    }
    return std::nullopt;
  }

  BlasLtFunctions const lt_ = load_blas_lt();
  std::span<std::byte> workspace_;
  Handle handle_{nullptr, lt_.destroy};
  std::map<Key, Plan> plans_;
};

void BlasLt::load() {
  static_cast<void>(load_blas_lt());
}

std::string BlasLt::version() {
  auto const number = load_blas_lt().get_version();
  return fmt::format("cuBLASLt {}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

BlasLt::BlasLt(std::span<std::byte> workspace)
    : implementation_{std::make_unique<Implementation>(workspace)} {}

bool BlasLt::multiply(Product const& product, CUstream_st* stream) {
  return implementation_->multiply(product, stream);
}

#else

class BlasLt::Implementation {};

void BlasLt::load() {
  throw CudaError{"not compiled in"};
}

std::string BlasLt::version() {
  throw CudaError{"not compiled in"};
}

BlasLt::BlasLt(std::span<std::byte> /*workspace*/) {
  throw CudaError{"not compiled in"};
}

bool BlasLt::multiply(Product const& product, CUstream_st* /*stream*/) {
  throw CudaError{describe(product) + ": not compiled in"};
}

#endif

BlasLt::~BlasLt() = default;

}  // namespace offstage::cuda
