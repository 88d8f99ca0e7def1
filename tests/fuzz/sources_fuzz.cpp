// The value of data.train, as text.
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "data/mixture.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace offstage;
  try {
    std::vector<double> weights;
    for (data::Source const& source :
         data::parse_sources({reinterpret_cast<char const*>(data), size})) {
      if (source.path.empty()) {
        __builtin_trap();
      }
      weights.push_back(source.weight.value_or(1.0));
    }
    // What was accepted is a mixture, and deals every file.
    data::Mixture const mixture{weights};
    for (std::int64_t const sample :
         {std::int64_t{0}, data::Mixture::block - 1, std::int64_t{1} << 60}) {
      auto const [file, index] = mixture.pick(sample, size);
      if (file >= weights.size() || index < 0 || index > sample) {
        __builtin_trap();
      }
    }
  } catch (UsageError const&) {
  }
  return 0;
}
