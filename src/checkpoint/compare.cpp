#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/listing.hpp"
#include "checkpoint/reader.hpp"
#include "platform/memory/huge_buffer.hpp"

namespace offstage::checkpoint {
namespace {

// Values that are compared as a whole before each by itself.
constexpr std::int64_t values_at_once = 4096;

/// The difference found so far in one plane of one tensor.
struct Difference {
  std::int64_t count{};
  std::int64_t first{};
  double largest{};

  void add(std::int64_t element, double a, double b) {
    if (count++ == 0) {
      first = element;
    }
    double const distance = std::abs(a - b);
    largest = std::max(largest,
                       std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance);
  }
};

/// One for each plane that both checkpoints have alike.
using Differences = std::vector<Difference>;

/// The number that a value stands for; the code itself if it is a code.
double number_of(PlaneType type, std::byte const* value) {
  if (type == PlaneType::fp32) {
    float number{};
    std::memcpy(&number, value, sizeof number);
    return number;
  }
  if (type == PlaneType::bf16) {
    bfloat16 number;
    std::memcpy(&number, value, sizeof number);
    return to_float(number);
  }
  return std::to_integer<int>(*value);
}

Reader reader_of(Listed const& checkpoint) {
  Inspection found = inspect(checkpoint.path);
  if (found.state == Completeness::refused) {
    throw IoError{found.problem};
  }
  if (found.state != Completeness::complete) {
    throw DataError{found.problem};
  }
  return {checkpoint.path, std::move(found.master)};
}

/// Two checkpoints, room for a batch of each, and the planes that both have alike: numbers in the
/// layouts of both.
struct Pair {
  Pair(Listed const& one, Listed const& other) : a(reader_of(one)), b(reader_of(other)) {
    for (std::size_t i = 0; i < a.layout().size(); ++i) {
      auto const found = std::ranges::find(b.layout().planes(), a.layout().planes()[i]);
      if (found != b.layout().planes().end()) {
        planes.emplace_back(i, static_cast<std::size_t>(found - b.layout().planes().begin()));
      }
    }
  }

  Reader a;
  Reader b;
  /// Elements of the largest batch.
  std::int64_t batch_elements = std::min(batch_chunks * chunk_elements, a.map().largest_layer());
  memory::HugeBuffer a_bytes{a.layout().bytes(batch_elements)};
  memory::HugeBuffer b_bytes{b.layout().bytes(batch_elements)};
  std::vector<std::pair<std::size_t, std::size_t>> planes;
};

/// A batch of chunks, and its place in its layer.
struct Batch {
  std::int64_t begin{};
  std::int64_t elements{};
};

/// Adds the differences of one tensor. A value of several elements belongs to every tensor that has
/// one of them.
void add_differences(Pair const& pair, state::TensorLayout const& tensor, Batch const& batch,
                     Differences& differences) {
  std::int64_t const begin = std::max(tensor.offset, batch.begin) - batch.begin;
  std::int64_t const end =
      std::min(tensor.offset + tensor.elements(), batch.begin + batch.elements) - batch.begin;
  for (std::size_t k = 0; k < pair.planes.size() && begin < end; ++k) {
    auto const [in_a, in_b] = pair.planes[k];
    Plane const& plane = pair.a.layout().planes()[in_a];
    Bytes const width = bytes_of(plane.type);
    std::byte const* const a =
        pair.a_bytes.bytes().data() + pair.a.layout().plane_offset(in_a, batch.elements);
    std::byte const* const b =
        pair.b_bytes.bytes().data() + pair.b.layout().plane_offset(in_b, batch.elements);
    std::int64_t const last = ceil_div(end, plane.elements_per_value);
    std::int64_t first = begin / plane.elements_per_value;
    for (std::int64_t count{}; first < last; first += count) {
      count = std::min(values_at_once, last - first);
      if (std::memcmp(a + first * width, b + first * width,
                      static_cast<std::size_t>(count * width)) == 0) {
        continue;
      }
      for (std::int64_t i = first; i < first + count; ++i) {
        if (std::memcmp(a + i * width, b + i * width, static_cast<std::size_t>(width)) != 0) {
          std::int64_t const element = std::max(begin, i * plane.elements_per_value);
          differences[k].add(batch.begin + element - tensor.offset,
                             number_of(plane.type, a + i * width),
                             number_of(plane.type, b + i * width));
        }
      }
    }
  }
}

void append_lines(Pair const& pair, state::TensorLayout const& tensor,
                  Differences const& differences, std::vector<std::string>& lines) {
  for (std::size_t k = 0; k < differences.size(); ++k) {
    Difference const& found = differences[k];
    if (found.count == 0) {
      continue;
    }
    Plane const& plane = pair.a.layout().planes()[pair.planes[k].first];
    lines.push_back(fmt::format(
        "{} {}: {} of {} {} differ, the first at {}, largest difference {:g}", plane.name,
        tensor.name, found.count, ceil_div(tensor.elements(), plane.elements_per_value),
        plane.elements_per_value > 1 ? "scales" : "elements", found.first, found.largest));
  }
}

std::vector<std::string> compare_layer(Pair& pair, int index) {
  state::LayerLayout const& layer = pair.a.map().layers()[static_cast<std::size_t>(index)];
  std::vector<Differences> differences(layer.tensors.size(), Differences(pair.planes.size()));
  for (std::int64_t first = 0; first < layer.chunks(); first += batch_chunks) {
    std::int64_t const count = std::min(batch_chunks, layer.chunks() - first);
    state::Piece const piece{index, {first, count}, 0};
    Batch const batch{first * chunk_elements, count * chunk_elements};
    auto const extent = [&](memory::HugeBuffer const& buffer, Reader const& reader) {
      return buffer.bytes().first(static_cast<std::size_t>(reader.layout().bytes(batch.elements)));
    };
    pair.a.read({&piece, 1}, extent(pair.a_bytes, pair.a));
    pair.b.read({&piece, 1}, extent(pair.b_bytes, pair.b));
    for (std::size_t t = 0; t < differences.size(); ++t) {
      add_differences(pair, layer.tensors[t], batch, differences[t]);
    }
  }
  std::vector<std::string> lines;
  for (std::size_t t = 0; t < differences.size(); ++t) {
    append_lines(pair, layer.tensors[t], differences[t], lines);
  }
  return lines;
}

/// Appends a line for each plane of `a` that `b` does not have alike.
void append_planes(Listed const& a, Listed const& b, std::vector<std::string>& lines) {
  auto const& others = b.meta.state.layout.planes();
  for (Plane const& plane : a.meta.state.layout.planes()) {
    if (std::ranges::find(others, plane) == others.end()) {
      lines.push_back(fmt::format("{}: {} has it as {}, {} has not", plane.name, a.path,
                                  name_of(plane.type), b.path));
    }
  }
}

}  // namespace

std::vector<std::string> compare(Listed const& a, Listed const& b) {
  Pair pair{a, b};
  if (!same_parameters(pair.a.meta().model, pair.b.meta().model)) {
    throw DataError{fmt::format(
        "{} and {} are checkpoints of different models ({})", a.path, b.path,
        differences(pair.a.meta().model, "the first", pair.b.meta().model, "the second"))};
  }
  std::vector<std::string> lines;
  append_planes(a, b, lines);
  append_planes(b, a, lines);
  for (int layer = 0; layer < static_cast<int>(pair.a.map().layers().size()); ++layer) {
    std::vector<std::string> const found = compare_layer(pair, layer);
    lines.insert(lines.end(), found.begin(), found.end());
  }
  return lines;
}

}  // namespace offstage::checkpoint
