// A Parquet table: its rows are read, all columns and the first one alone, or it is refused.
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "memory_file.hpp"
#include "parquet/rows.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace offstage;
  if (size == 0) {
    return 0;
  }
  MemoryFile const file{data, size};
  for (auto const& column : {std::optional<std::string>{}, std::optional<std::string>{"text"}}) {
    try {
      auto const rows = parquet::open_rows(file.path(), "--from", column);
      std::array<std::byte, 4096> part{};
      // Few bytes may say that there are very many rows.
      for (int parts = 0; parts < 64 && rows->read(part) == part.size(); ++parts) {
      }
    } catch (DataError const&) {
    }
  }
  return 0;
}
