// A SentencePiece model: its tables of characters are sound or not, as their check finds within the
// model's bytes.
#include <cstddef>
#include <cstdint>
#include <string>

#include "data/character_map.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  // Memory of its own, so that a read behind the end is seen.
  std::string const model(reinterpret_cast<char const*>(data), size);
  static_cast<void>(offstage::data::has_sound_character_maps(model));
  return 0;
}
