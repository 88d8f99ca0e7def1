// Damage to any file of a checkpoint: a list of changes, six bytes and more each. Whatever the
// damage, what is read is what was written, or an error.
#include <algorithm>
#include <cstdint>
#include <span>

#include "sample_checkpoint.hpp"

namespace {

using namespace offstage;
using namespace offstage::checkpoint;

/// Takes one change off the list: which file and how (a byte), where (three), how many bytes (one),
/// the bytes.
std::span<std::uint8_t const> apply(std::span<std::uint8_t const> list, DamagedSample& sample) {
  std::size_t const files = sample.targets.size();
  Target& target = *sample.targets[list[0] % files];
  Bytes const offset = list[1] + 256 * list[2] + 65536 * list[3];
  auto const count = std::min<std::size_t>(list[4], list.size() - 5);
  if (list[0] / files % 8 == 7) {
    target.resize(offset);
  } else {
    target.write(offset % std::ssize(target.good()), list.subspan(5, count));
  }
  return list.subspan(5 + count);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  static DamagedSample sample;
  std::span<std::uint8_t const> list{data, size};
  for (int changes = 0; list.size() >= 6 && changes < 16; ++changes) {
    list = apply(list, sample);
  }
  try {
    sample.checkpoint.read_all(true);
  } catch (DataError const&) {
  } catch (IoError const&) {
  }
  sample.restore();
  return 0;
}
