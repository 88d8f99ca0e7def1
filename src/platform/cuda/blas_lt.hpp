#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

struct CUstream_st;

namespace offstage::cuda {

enum class Element { f32, bf16, f16 };

/// C (m, n) = op(A) (m, k) op(B) (k, n), and `bias` (n) added to each row unless it is null; or C
/// += op(A) op(B). Row-major, in device memory: A is stored (m, k), or (k, m) if transposed; B is
/// stored (k, n), or (n, k) if transposed. Sizes of 1 at least.
struct Product {
  Element in{};   ///< type of A and B
  Element out{};  ///< type of C and the bias
  void const* a{};
  void const* b{};
  void* c{};
  void const* bias{};
  std::int64_t m{}, n{}, k{};
  bool transpose_a{}, transpose_b{};
  std::int64_t a_stride{}, b_stride{}, c_stride{};  ///< elements from a stored row to the next
  bool add{};                                       ///< to what C holds
};

/// "bf16 (8, 5) x (5, 3) with a bias to f32": sizes as the product takes them, not as they are
/// stored.
[[nodiscard]] std::string describe(Product const& product);

/// A handle of cuBLASLt and the algorithms that it has chosen.
///
/// Exact:   sums run in FP32 (no TF32), the bias is added to them, and the result is rounded once.
/// Repeats: an algorithm depends on types, sizes, transposes, strides, whether there is a bias or a
///          sum and on how addresses are aligned (up to 256 bytes) alone: it is the first of
///          cuBLASLt's heuristic, never the fastest of a measurement. Those whose partial sums meet
///          in an order that differs between runs, or in C, are not among them. Another version of
///          the library may choose another.
/// Threads: one at a time.
/// Errors:  CudaError that names the call and the product; construction: the call alone, or that
///          there is no such library.
class BlasLt {
 public:
  /// Has the library in memory, where construction else brings it: 0.1 s, and 100 MB that are this
  /// process's alone.
  static void load();
  /// "cuBLASLt 13.1.0", of the library that load() has in memory.
  [[nodiscard]] static std::string version();
  /// On the thread's current device, as all calls must be. Products use the workspace, which must
  /// outlive them and be aligned to 256 bytes; the stream that they are queued on may use it
  /// between them.
  explicit BlasLt(std::span<std::byte> workspace);
  ~BlasLt();
  BlasLt(BlasLt const&) = delete;
  BlasLt& operator=(BlasLt const&) = delete;

  /// Queues the product. Returns false, with nothing queued, if cuBLASLt has it only without its
  /// bias: it offers no algorithm, or one that it refuses when it is called, which is remembered.
  [[nodiscard]] bool multiply(Product const& product, CUstream_st* stream);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace offstage::cuda
