// A run's metrics.jsonl, read and shown as a page.
#include <cstdint>
#include <string>

#include "../temporary_directory.hpp"
#include "base/error.hpp"
#include "report/page.hpp"
#include "report/run.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace offstage;
  static TemporaryDirectory const directory;
  directory.write("metrics.jsonl", {reinterpret_cast<char const*>(data), size});
  try {
    std::string const page = report::page({report::read_run(directory.path())});
    // Texts of the file are shown as texts.
    if (page.find("<script") != std::string::npos || page.find("</html>") == std::string::npos) {
      __builtin_trap();
    }
  } catch (DataError const&) {
  }
  return 0;
}
