// Megatron's .idx: two bytes that say how long the .bin is, then the index.
#include <cstdint>
#include <string>

#include "../data/formats.hpp"
#include "base/error.hpp"
#include "data/megatron_index.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace offstage;
  if (size < 2) {
    return 0;
  }
  Bytes const data_bytes = data[0] + 256 * data[1];
  data::MemorySource const index{{reinterpret_cast<char const*>(data) + 2, size - 2}};
  try {
    std::int64_t documents = 0;
    std::int64_t last = -1;
    auto const found = data::read_megatron_index(index, data_bytes, [&](std::int64_t begin) {
      // What was accepted begins at 0 and ascends.
      if (begin <= last || (documents == 0 && begin != 0)) {
        __builtin_trap();
      }
      last = begin;
      ++documents;
    });
    if (found.tokens * data::size_of(found.type) != data_bytes || found.documents != documents ||
        (documents > 0 && last >= found.tokens)) {
      __builtin_trap();
    }
  } catch (DataError const&) {
  }
  return 0;
}
