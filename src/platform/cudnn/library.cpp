#include "platform/cudnn/library.hpp"

#ifdef OFFSTAGE_HAVE_CUDNN
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/at_end.hpp"
#include "base/shared_library.hpp"

namespace offstage::cudnn {
namespace {

// The frontend would load CUDA's runtime as a shared library, of either version that it finds;
// offstage has its own linked in, and says so in place of the system.
constexpr std::string_view runtime = "libcudart";
int runtime_handle;

void* open_for_frontend(char const* name, int mode) {
  if (std::string_view{name}.starts_with(runtime)) {
    bool const ours = std::string_view{name}.ends_with(fmt::format(".{}", CUDART_VERSION / 1000));
    return ours ? &runtime_handle : nullptr;
  }
  return dlopen(name, mode);
}

void* find_for_frontend(void* library, char const* name) {
  if (library != &runtime_handle) {
    return dlsym(library, name);
  }
#define OFFSTAGE_FUNCTION(function)                                 \
  std::pair {                                                       \
    std::string_view{#function}, reinterpret_cast<void*>(&function) \
  }
  static std::array const functions {
    OFFSTAGE_FUNCTION(cudaDeviceGetAttribute), OFFSTAGE_FUNCTION(cudaGetDevice),
        OFFSTAGE_FUNCTION(cudaGetErrorString), OFFSTAGE_FUNCTION(cudaGetLastError),
        OFFSTAGE_FUNCTION(cudaMemcpyAsync), OFFSTAGE_FUNCTION(cudaMemsetAsync),
        OFFSTAGE_FUNCTION(cudaPointerGetAttributes), OFFSTAGE_FUNCTION(cudaRuntimeGetVersion),
        OFFSTAGE_FUNCTION(cudaStreamIsCapturing), OFFSTAGE_FUNCTION(cudaStreamSynchronize),
        OFFSTAGE_FUNCTION(cudaThreadExchangeStreamCaptureMode),
#if CUDART_VERSION >= 12080
        OFFSTAGE_FUNCTION(cudaGetDriverEntryPointByVersion),
#else
        OFFSTAGE_FUNCTION(cudaGetDriverEntryPoint),
#endif
  };
#undef OFFSTAGE_FUNCTION
  for (auto const& [known, address] : functions) {
    if (known == name) {
      return address;
    }
  }
  return nullptr;  // of which the frontend makes an error that names it
}

}  // namespace
}  // namespace offstage::cudnn

#define dlopen(name, mode) offstage::cudnn::open_for_frontend(name, mode)
#define dlsym(library, name) offstage::cudnn::find_for_frontend(library, name)
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>
#undef dlopen
#undef dlsym

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // by which the frontend calls the library
}
#endif

namespace offstage::cudnn {

#ifdef OFFSTAGE_HAVE_CUDNN
namespace {

namespace frontend = cudnn_frontend;
using frontend::graph::Graph;
using frontend::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

#define OFFSTAGE_TEXT_OF(number) #number
#define OFFSTAGE_TEXT(macro) OFFSTAGE_TEXT_OF(macro)
/// Whole in every program, where jobs/carry-packages.sh reads it; a compiler may else cut it up.
[[gnu::used]] constexpr char soname[] = "libcudnn.so." OFFSTAGE_TEXT(CUDNN_MAJOR);
#undef OFFSTAGE_TEXT
#undef OFFSTAGE_TEXT_OF

/// The frontend has a line for each plan that it has tried.
std::string one_line(std::string text) {
  while (text.ends_with('\n')) {
    text.pop_back();
  }
  std::ranges::replace(text, '\n', ' ');
  return text;
}

void check(frontend::error_t error, char const* what) {
  if (error.is_bad()) {
    throw CudnnError{fmt::format("{}: {}", what, one_line(error.get_message()))};
  }
}

/// Its handle on the thread's current GPU.
class Handle {
 public:
  Handle() {
    if (auto const status = frontend::detail::create_handle(&handle_);
        status != CUDNN_STATUS_SUCCESS) {
      throw CudnnError{
          fmt::format("cudnnCreate failed: {}", frontend::detail::get_error_string(status))};
    }
  }
  ~Handle() { static_cast<void>(frontend::detail::destroy_handle(handle_)); }
  Handle(Handle const&) = delete;
  Handle& operator=(Handle const&) = delete;

  [[nodiscard]] cudnnHandle_t on(CUstream_st* stream) const {
    if (auto const status = frontend::detail::set_stream(handle_, stream);
        status != CUDNN_STATUS_SUCCESS) {
      throw CudnnError{
          fmt::format("cudnnSetStream failed: {}", frontend::detail::get_error_string(status))};
    }
    return handle_;
  }
  [[nodiscard]] cudnnHandle_t get() const noexcept { return handle_; }

 private:
  cudnnHandle_t handle_{};
};

/// Tensors by the numbers that graphs know them by.
enum Id : std::int64_t { q = 1, k, v, o, statistics, d_o, d_q, d_k, d_v };

int current_capability() {
  int device{};
  int major{};
  int minor{};
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
    throw CudnnError{"no GPU can be asked what it is"};
  }
  return 10 * major + minor;
}

/// Graphs of one shape, before anything is chosen for them.
class Graphs {
 public:
  Graphs(AttentionShape const& shape, int capability)
      : shape_{shape},
        capability_{capability},
        scale_{1 / std::sqrt(static_cast<float>(shape.head_dim))} {}

  [[nodiscard]] std::unique_ptr<Graph> forward() const {
    auto graph = make();
    auto const [out, rows] = graph->sdpa(input(*graph, q), input(*graph, k), input(*graph, v),
                                         frontend::graph::SDPA_attributes()
                                             .set_generate_stats(true)
                                             .set_causal_mask(true)
                                             .set_attn_scale(scale_));
    describe(*out, o).set_output(true);
    describe(*rows, statistics).set_output(true);
    return graph;
  }
  [[nodiscard]] std::unique_ptr<Graph> backward() const {
    auto graph = make();
    auto const [of_q, of_k, of_v] =
        graph->sdpa_backward(input(*graph, q), input(*graph, k), input(*graph, v), input(*graph, o),
                             input(*graph, d_o), input(*graph, statistics),
                             frontend::graph::SDPA_backward_attributes()
                                 .set_causal_mask(true)
                                 .set_attn_scale(scale_)
                                 .set_deterministic_algorithm(true));
    describe(*of_q, d_q).set_output(true);
    describe(*of_k, d_k).set_output(true);
    describe(*of_v, d_v).set_output(true);
    return graph;
  }

 private:
  [[nodiscard]] std::unique_ptr<Graph> make() const {
    auto graph = std::make_unique<Graph>();
    graph
        ->set_io_data_type(shape_.type == DType::bf16 ? frontend::DataType_t::BFLOAT16
                                                      : frontend::DataType_t::HALF)
        .set_intermediate_data_type(frontend::DataType_t::FLOAT)
        .set_compute_data_type(frontend::DataType_t::FLOAT)
        .set_sm_version(capability_);
    // Nobody captures CUDA graphs here, and so nothing is to be asked about them in each call.
    graph->set_cuda_graph_retention(frontend::CudaGraphRetention_t::NONE);
    return graph;
  }
  [[nodiscard]] Tensor input(Graph& graph, Id id) const {
    Tensor_attributes tensor;
    return graph.tensor(describe(tensor, id));
  }
  Tensor_attributes& describe(Tensor_attributes& tensor, Id id) const {
    auto const [type, batch, sequence, heads, kv_heads, width] = shape_;
    tensor.set_uid(id);
    if (id == statistics) {
      return tensor.set_data_type(frontend::DataType_t::FLOAT)
          .set_dim({batch, heads, sequence, 1})
          .set_stride({heads * sequence, sequence, 1, 1});
    }
    bool const is_out = id == o || id == d_o;
    bool const is_key = id == k || id == v || id == d_k || id == d_v;
    std::int64_t const row = is_out ? heads * width : (heads + 2 * kv_heads) * width;
    return tensor.set_dim({batch, is_key ? kv_heads : heads, sequence, width})
        .set_stride({sequence * row, width, row, 1});
  }

  AttentionShape shape_;
  int capability_;
  float scale_;
};

/// A graph whose plan is chosen.
class Planned {
 public:
  /// `most`: bytes of workspace that a plan may take.
  Planned(std::unique_ptr<Graph> graph, cudnnHandle_t handle,
          std::shared_ptr<frontend::DeviceProperties const> const& described, Bytes most)
      : graph_{std::move(graph)} {
    check(graph_->validate(), "its frontend refuses");
    if (described) {
      graph_->set_device_properties(described);
    }
    check(graph_->build_operation_graph(handle), "the library refuses the graph");
    check(graph_->create_execution_plans({frontend::HeurMode_t::A}), "no plan");
    graph_->deselect_numeric_notes({frontend::NumericalNote_t::NONDETERMINISTIC});
    graph_->deselect_workspace_greater_than(most);
    check(graph_->check_support(), "no plan that can be used");
    check(graph_->build_plans(frontend::BuildPlanPolicy_t::HEURISTICS_CHOICE),
          "no plan that can be built");
    check(graph_->get_plan_name(name_), "the plan's name");
    std::int64_t size{};
    check(graph_->get_workspace_size(size), "the plan's workspace");
    workspace_ = size;
  }

  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  [[nodiscard]] Bytes workspace() const noexcept { return workspace_; }
  void run(cudnnHandle_t handle, std::unordered_map<std::int64_t, void*> tensors,
           std::span<std::byte> workspace) const {
    require(std::ssize(workspace) >= workspace_, "cudnn::Attention: the workspace is too small");
    check(graph_->execute(handle, tensors, workspace.data()), name_.c_str());
  }

 private:
  std::unique_ptr<Graph> graph_;
  std::string name_;
  Bytes workspace_{};
};

/// What the frontend and the standard library throw, as this room's.
template <class Call>
auto translated(Call const& call) {
  try {
    return call();
  } catch (Error const&) {
    throw;
  } catch (std::exception const& error) {
    throw CudnnError{one_line(error.what())};
  }
}

std::shared_ptr<frontend::DeviceProperties const> properties_of(DescribedGpu const& gpu) {
  auto properties = std::make_shared<frontend::DeviceProperties>();
  std::vector<std::uint8_t> const text{gpu.properties.begin(), gpu.properties.end()};
  check(properties->deserialize(text), "a GPU's description");
  return properties;
}

class PlannedAttention final : public Attention {
 public:
  PlannedAttention(AttentionShape const& shape, DescribedGpu const* described)
      : shape_{shape},
        handle_{described != nullptr ? nullptr : std::make_unique<Handle>()},
        properties_{described != nullptr ? properties_of(*described) : nullptr},
        graphs_{shape, described != nullptr ? described->capability : current_capability()},
        forward_{graphs_.forward(), handle(), properties_, forward_workspace},
        backward_{graphs_.backward(), handle(), properties_, std::numeric_limits<Bytes>::max()} {}

  [[nodiscard]] std::string plans() const override {
    return fmt::format("{}, {}", forward_.name(), backward_.name());
  }
  [[nodiscard]] Bytes workspace() const noexcept override { return backward_.workspace(); }

  void forward(ForwardTensors const& tensors, std::span<std::byte> workspace,
               CUstream_st* stream) override {
    run(forward_,
        {{q, part(tensors.qkv, 0)},
         {k, part(tensors.qkv, shape_.heads)},
         {v, part(tensors.qkv, shape_.heads + shape_.kv_heads)},
         {o, tensors.out},
         {statistics, tensors.log_sum_exp}},
        workspace, stream);
  }
  void backward(BackwardTensors const& tensors, std::span<std::byte> workspace,
                CUstream_st* stream) override {
    run(backward_,
        {{q, part(tensors.qkv, 0)},
         {k, part(tensors.qkv, shape_.heads)},
         {v, part(tensors.qkv, shape_.heads + shape_.kv_heads)},
         {o, part(tensors.out, 0)},
         {d_o, part(tensors.d_out, 0)},
         {statistics, const_cast<float*>(tensors.log_sum_exp)},
         {d_q, part(tensors.d_qkv, 0)},
         {d_k, part(tensors.d_qkv, shape_.heads)},
         {d_v, part(tensors.d_qkv, shape_.heads + shape_.kv_heads)}},
        workspace, stream);
  }

 private:
  [[nodiscard]] cudnnHandle_t handle() const { return handle_ ? handle_->get() : nullptr; }
  /// Where a row's head of this number begins. The library's calls know no const.
  [[nodiscard]] void* part(void const* row, std::int64_t head) const {
    constexpr std::int64_t element = 2;
    return const_cast<std::byte*>(static_cast<std::byte const*>(row) +
                                  head * shape_.head_dim * element);
  }
  void run(Planned const& planned, std::unordered_map<std::int64_t, void*> tensors,
           std::span<std::byte> workspace, CUstream_st* stream) {
    require(handle_ != nullptr, "cudnn::Attention: plans of a described GPU do not run");
    translated([&] { planned.run(handle_->on(stream), std::move(tensors), workspace); });
  }

  AttentionShape shape_;
  std::unique_ptr<Handle> handle_;
  std::shared_ptr<frontend::DeviceProperties const> properties_;
  Graphs graphs_;
  Planned forward_;
  Planned backward_;
};

class LoadedLibrary final : public Library {
 public:
  explicit LoadedLibrary(std::string const& file) {
    std::vector<std::string> files{file};
    if (file.empty()) {
      files = {soname, fmt::format("{}/{}", OFFSTAGE_CUDNN_DIRECTORY, soname)};
    }
    SharedLibrary const library{files};
    if (!library.is_open()) {
      throw CudnnError{
          fmt::format("it cannot be loaded: {}; PyTorch and pip's nvidia-cudnn-cu{} bring it: name "
                      "the directory of {} in LD_LIBRARY_PATH",
                      library.reasons(), CUDART_VERSION / 1000, soname)};
    }
    std::size_t (*get_version)() = nullptr;
    if (!library.find(get_version, "cudnnGetVersion")) {
      throw CudnnError{fmt::format("{} has no cudnnGetVersion", library.file())};
    }
    auto const number = get_version();
    version_ = fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
    if (frontend::cudnn_dlhandle == nullptr) {
      frontend::cudnn_dlhandle = dlopen(library.file().c_str(), RTLD_NOW | RTLD_LOCAL);
    }
  }

  [[nodiscard]] std::string version() const override { return version_; }
  [[nodiscard]] std::unique_ptr<Attention> plan(AttentionShape const& shape,
                                                DescribedGpu const* described) const override {
    return translated([&]() -> std::unique_ptr<Attention> {
      int const capability = described != nullptr ? described->capability : current_capability();
      if (auto const reason = reason_against(shape, capability); !reason.empty()) {
        throw CudnnError{reason};
      }
      // The frontend asks this program's CUDA runtime. What it tried in vain is no launch's error,
      // also where there is no plan and the own kernels go on.
      AtEnd const forget{[] { static_cast<void>(cudaGetLastError()); }};
      return std::make_unique<PlannedAttention>(shape, described);
    });
  }

 private:
  std::string version_;
};

}  // namespace

bool is_built_in() noexcept {
  return true;
}

std::unique_ptr<Library> load_library(std::string const& file) {
  return std::make_unique<LoadedLibrary>(file);
}

#else

bool is_built_in() noexcept {
  return false;
}

std::unique_ptr<Library> load_library(std::string const& /*file*/) {
  throw CudnnError{"offstage was built without it: there was no cudnn.h or no cudnn_frontend.h"};
}

#endif

}  // namespace offstage::cudnn
