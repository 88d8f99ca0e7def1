// A file of llm.c, as bytes.
#include <cstdint>
#include <string>

#include "../data/formats.hpp"
#include "base/error.hpp"
#include "data/llmc_header.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace offstage;
  data::MemorySource const file{{reinterpret_cast<char const*>(data), size}};
  try {
    auto const header = data::read_llmc_header(file);
    // What was accepted fills the file.
    if (header.tokens < 1 ||
        data::llmc_header_bytes + header.tokens * data::size_of(header.type) != file.size()) {
      __builtin_trap();
    }
  } catch (DataError const&) {
  }
  return 0;
}
