#include "huggingface/tensor_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/lfs_pointer.hpp"
#include "huggingface/safetensors.hpp"
#include "huggingface/torch_archive.hpp"

namespace offstage::huggingface {
namespace {

static_assert(std::endian::native == std::endian::little, "both formats are little-endian");

/// Numbers of 16 bits that stand in the upper half of `out` become floats in all of it.
template <class T>
void widen(std::span<float> out) {
  auto const* const narrow = reinterpret_cast<std::byte const*>(out.data()) + 2 * out.size();
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, narrow + 2 * i, 2);
    out[i] = to_float(value);  // overwrites no number that is still to be read
  }
}

TensorEntries read_entries(File const& file) {
  std::string beginning(lfs_pointer_start.size(), '\0');
  beginning.resize(std::min(beginning.size(), static_cast<std::size_t>(file.size())));
  file.read_at(0, std::as_writable_bytes(std::span{beginning}));
  if (is_lfs_pointer(beginning)) {
    throw DataError{fmt::format("{}: {}", file.path(), lfs_pointer_advice)};
  }
  if (is_archive(beginning)) {
    return read_torch_archive(file);
  }
  if (!file.path().ends_with(".bin")) {
    return read_safetensors(file);
  }
  if (beginning.starts_with('\x80')) {
    throw DataError{fmt::format(
        "{}: was written by torch.save before PyTorch 1.6, whose format is not read; load and save "
        "it again: torch.save(torch.load(OLD), NEW)",
        file.path())};
  }
  throw DataError{file.path() + ": is no file of torch.save, or is cut short"};
}

}  // namespace

TensorFile::TensorFile(std::string const& path)
    : file_{File::open_read(path)}, tensors_{read_entries(file_)} {}

void TensorFile::read(TensorEntry const& tensor, std::int64_t first, std::span<float> out) const {
  bool const wide = tensor.dtype == "F32";
  require(wide || tensor.dtype == "BF16" || tensor.dtype == "F16", "TensorFile: a dtype to read");
  Bytes const width = wide ? 4 : 2;
  auto const count = static_cast<std::int64_t>(out.size());
  require(first >= 0 && first <= (tensor.end - tensor.begin) / width &&
              count <= (tensor.end - tensor.begin) / width - first,
          "TensorFile: elements inside the tensor");
  auto const bytes = std::as_writable_bytes(out);
  file_.read_at(tensor.begin + width * first, wide ? bytes : bytes.subspan(bytes.size() / 2));
  if (tensor.dtype == "BF16") {
    widen<bfloat16>(out);
  } else if (!wide) {
    widen<float16>(out);
  }
}

}  // namespace offstage::huggingface
