#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/reader.hpp"
#include "checkpoint/store.hpp"
#include "platform/memory/huge_buffer.hpp"

namespace offstage::checkpoint {
namespace {

constexpr std::int64_t batch_chunks = 1024;

/// How one array of one tensor differs so far.
struct Difference {
  std::int64_t count{};
  std::int64_t first{};
  double largest{};

  void add(std::int64_t index, float a, float b) {
    if (std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b)) {
      return;
    }
    if (count++ == 0) {
      first = index;
    }
    double const distance = std::abs(static_cast<double>(a) - static_cast<double>(b));
    largest = std::max(largest,
                       std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance);
  }
};

/// Of p, m and v.
using Differences = std::array<Difference, 3>;

Reader reader_of(Listed const& checkpoint) {
  Inspection found = inspect(checkpoint.path);
  if (found.state != Inspection::State::complete) {
    throw DataError{found.problem};
  }
  return {checkpoint.path, std::move(found.master)};
}

/// The state of a batch of chunks, (3, N), and where it stands in its layer.
struct Batch {
  std::int64_t begin{};
  std::int64_t elements{};
  std::span<float const> a;
  std::span<float const> b;
};

void add_differences(state::TensorLayout const& tensor, Batch const& batch,
                     Differences& differences) {
  std::int64_t const begin = std::max(tensor.offset, batch.begin);
  std::int64_t const end =
      std::min(tensor.offset + tensor.elements(), batch.begin + batch.elements);
  for (std::size_t array = 0; array < differences.size(); ++array) {
    for (std::int64_t i = begin; i < end; ++i) {
      auto const at = array * static_cast<std::size_t>(batch.elements) +
                      static_cast<std::size_t>(i - batch.begin);
      differences[array].add(i - tensor.offset, batch.a[at], batch.b[at]);
    }
  }
}

void append_lines(state::TensorLayout const& tensor, Differences const& differences,
                  std::vector<std::string>& lines) {
  constexpr std::array<char const*, 3> names{"parameter", "momentum", "variance"};
  for (std::size_t array = 0; array < names.size(); ++array) {
    Difference const& found = differences[array];
    if (found.count == 0) {
      continue;
    }
    lines.push_back(fmt::format(
        "{} {}: {} of {} elements differ, the first at {}, largest difference {:g}", names[array],
        tensor.name, found.count, tensor.elements(), found.first, found.largest));
  }
}

/// Two checkpoints and room for a batch of each.
struct Pair {
  Reader a;
  Reader b;
  memory::HugeBuffer a_bytes{3 * batch_chunks * chunk_bytes};
  memory::HugeBuffer b_bytes{3 * batch_chunks * chunk_bytes};
};

std::vector<std::string> compare_layer(Pair& pair, int index) {
  state::LayerLayout const& layer = pair.a.map().layers()[static_cast<std::size_t>(index)];
  std::vector<Differences> differences(layer.tensors.size());
  for (std::int64_t first = 0; first < layer.chunks(); first += batch_chunks) {
    std::int64_t const count = std::min(batch_chunks, layer.chunks() - first);
    state::Piece const piece{index, {first, count}, 0};
    auto const bytes = static_cast<std::size_t>(3 * count * chunk_bytes);
    pair.a.read({&piece, 1}, pair.a_bytes.bytes().first(bytes));
    pair.b.read({&piece, 1}, pair.b_bytes.bytes().first(bytes));
    Batch const batch{first * chunk_elements, count * chunk_elements, pair.a_bytes.as<float>(),
                      pair.b_bytes.as<float>()};
    for (std::size_t t = 0; t < differences.size(); ++t) {
      add_differences(layer.tensors[t], batch, differences[t]);
    }
  }
  std::vector<std::string> lines;
  for (std::size_t t = 0; t < differences.size(); ++t) {
    append_lines(layer.tensors[t], differences[t], lines);
  }
  return lines;
}

}  // namespace

std::vector<std::string> compare(Listed const& a, Listed const& b) {
  Pair pair{reader_of(a), reader_of(b)};
  if (!same_parameters(pair.a.meta().model, pair.b.meta().model)) {
    throw DataError{fmt::format("{} and {} are checkpoints of different models", a.path, b.path)};
  }
  std::vector<std::string> lines;
  for (int layer = 0; layer < static_cast<int>(pair.a.map().layers().size()); ++layer) {
    std::vector<std::string> const found = compare_layer(pair, layer);
    lines.insert(lines.end(), found.begin(), found.end());
  }
  return lines;
}

}  // namespace offstage::checkpoint
