// PREFIX.pack.part, from which a pack goes on.
#include <cstdint>
#include <string>

#include "../temporary_directory.hpp"
#include "base/error.hpp"
#include "pack/progress_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace offstage;
  static TemporaryDirectory const directory;
  directory.write("out.pack.part", {reinterpret_cast<char const*>(data), size});
  try {
    pack::Request const request{{"--format", "megatron"}};
    pack::ProgressFile const file{(directory.path() / "out").string(), request, {}};
    if (auto const& saved = file.saved()) {
      // A pack goes on from these numbers.
      if (saved->written.tokens < 0 || saved->written.documents < 0) {
        __builtin_trap();
      }
    }
  } catch (UsageError const&) {
  } catch (DataError const&) {
  }
  return 0;
}
