// main() of fuzz targets in the normal build: runs every file of the given directories through the
// target, in order of names. Fails on the first that throws what a target may not throw.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size);

namespace {

std::vector<std::filesystem::path> files_in(char const* directory) {
  std::vector<std::filesystem::path> files;
  for (auto const& entry : std::filesystem::directory_iterator{directory}) {
    files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

void replay(std::filesystem::path const& path) {
  std::ifstream file{path, std::ios::binary};
  std::string const bytes{std::istreambuf_iterator<char>{file}, {}};
  LLVMFuzzerTestOneInput(reinterpret_cast<std::uint8_t const*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  int replayed = 0;
  for (int i = 1; i < argc; ++i) {
    for (std::filesystem::path const& path : files_in(argv[i])) {
      try {
        replay(path);
      } catch (std::exception const& error) {
        std::fprintf(stderr, "%s: %s\n", path.c_str(), error.what());
        return 1;
      }
      ++replayed;
    }
  }
  std::printf("%d inputs replayed\n", replayed);
  // A corpus that went missing is no success.
  return replayed > 0 ? 0 : 1;
}
