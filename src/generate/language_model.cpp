#include "generate/language_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "base/chunk.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "device/device.hpp"
#include "generate/cached_decoder.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/memory/process_memory.hpp"
#include "state/exchange.hpp"

namespace offstage::generate {
namespace {

// 4 MiB of FP32 at a time.
constexpr std::int64_t chunks_per_read = 256;

/// All layers, in the type of the computation. The emulated device's memory is the host's.
template <class T>
class HeldParameters final : public state::ParameterSource<T> {
 public:
  explicit HeldParameters(state::ParameterReader& reader) {
    auto const layouts = state::layers_of(reader.shape());
    Bytes needed = 0;
    for (state::LayerLayout const& layout : layouts) {
      needed += layout.padded_elements() * static_cast<Bytes>(sizeof(T));
    }
    if (Bytes const free = memory::available_bytes(); needed > free) {
      throw UsageError{fmt::format(
          "the model's parameters take {} in {}, but {} of memory is free; use --dtype=bf16 or a "
          "larger machine",
          format_bytes(needed), name_of(dtype_of<T>()), format_bytes(free))};
    }
    for (state::LayerLayout const& layout : layouts) {
      auto const layer = static_cast<int>(layers_.size());
      auto& buffer = layers_.emplace_back(layout.padded_elements() * static_cast<Bytes>(sizeof(T)));
      fill(reader, layer, layout.chunks(), buffer.template as<T>());
    }
  }

  [[nodiscard]] std::span<T const> acquire(int layer) override {
    return layers_[static_cast<std::size_t>(layer)].template as<T const>();
  }
  void release(int /*layer*/, std::shared_ptr<device::Event> /*done*/) override {}

 private:
  void fill(state::ParameterReader& reader, int layer, std::int64_t chunks, std::span<T> out) {
    for (std::int64_t first = 0; first < chunks; first += chunks_per_read) {
      std::int64_t const count = std::min(chunks_per_read, chunks - first);
      piece_.resize(static_cast<std::size_t>(count * chunk_elements));
      reader.read(layer, {first, count}, piece_);
      std::ranges::transform(piece_, out.begin() + first * chunk_elements,
                             [](float value) { return store<T>(value); });
    }
  }

  std::vector<memory::HugeBuffer> layers_;
  std::vector<float> piece_;
};

template <class T>
class Loaded final : public LanguageModel {
 public:
  explicit Loaded(state::ParameterReader& reader)
      : shape_{reader.shape()},
        parameters_{reader},
        logits_(static_cast<std::size_t>(shape_.vocab)) {}

  [[nodiscard]] state::ModelShape const& shape() const override { return shape_; }

  [[nodiscard]] std::span<float const> logits(std::span<std::int32_t const> tokens) override {
    require(!tokens.empty() && std::ssize(tokens) <= shape_.max_sequence,
            "LanguageModel: 1 to max_sequence tokens");
    auto const same = std::ranges::mismatch(seen_, tokens).in1 - seen_.begin();
    // The last one's row has the logits.
    auto const kept = std::min<std::ptrdiff_t>(same, std::ssize(tokens) - 1);
    seen_.resize(static_cast<std::size_t>(kept));
    decoder_.shorten(kept);
    decoder_.append(tokens.subspan(seen_.size()), logits_);
    seen_.assign(tokens.begin(), tokens.end());
    return logits_;
  }

 private:
  state::ModelShape shape_;
  HeldParameters<T> parameters_;
  std::unique_ptr<device::Device> device_ = device::make_host_device(0);
  std::unique_ptr<device::Stream> stream_ = device_->make_calling_stream("compute");
  CachedDecoder<T> decoder_{shape_, parameters_, *stream_};
  std::vector<std::int32_t> seen_;  ///< whose keys and values the decoder keeps
  std::vector<float> logits_;
};

}  // namespace

std::unique_ptr<LanguageModel> load(state::ParameterReader& reader, DType type) {
  require(type == DType::fp32 || type == DType::bf16, "load: the type is fp32 or bf16");
  if (type == DType::bf16) {
    return std::make_unique<Loaded<bfloat16>>(reader);
  }
  return std::make_unique<Loaded<float>>(reader);
}

}  // namespace offstage::generate
