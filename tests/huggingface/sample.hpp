#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.hpp"

namespace offstage::huggingface {

template <class Expected, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (Expected const& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

struct Tensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

template <class T>
std::string bytes_of(std::vector<T> const& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// A file of these tensors, one behind the other.
inline std::string safetensors(std::vector<Tensor> const& tensors) {
  std::string header;
  std::string buffer;
  for (Tensor const& tensor : tensors) {
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          header.empty() ? "{" : ",", tensor.name, tensor.dtype,
                          fmt::join(tensor.shape, ","), buffer.size(),
                          buffer.size() + tensor.bytes.size());
    buffer += tensor.bytes;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return bytes_of<std::uint64_t>({header.size()}) + header + buffer;
}

}  // namespace offstage::huggingface
