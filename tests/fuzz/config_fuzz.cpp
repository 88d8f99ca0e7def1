// config.json of a Hugging Face model, as bytes.
#include <string_view>

#include "base/error.hpp"
#include "huggingface/config.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace offstage;
  try {
    state::ModelShape const shape =
        huggingface::parse_config({reinterpret_cast<char const*>(data), size}, "config.json");
    // What was accepted is a model, and is written and read back as the same one.
    state::validate(shape);
    if (huggingface::parse_config(huggingface::config_json(shape, DType::fp32), "again") != shape) {
      __builtin_trap();
    }
  } catch (DataError const&) {
  }
  return 0;
}
