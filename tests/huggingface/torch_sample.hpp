#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "huggingface/sample.hpp"

namespace offstage::huggingface {

/// Opcodes of a pickle.
inline std::string pickled(std::string const& text) {
  return "X" + bytes_of<std::uint32_t>({static_cast<std::uint32_t>(text.size())}) + text;
}
inline std::string pickled(std::int32_t number) {
  return "J" + bytes_of<std::int32_t>({number});
}
inline std::string pickled(std::vector<std::int32_t> const& numbers) {
  std::string text = "(";
  for (std::int32_t const number : numbers) {
    text += pickled(number);
  }
  return text + "t";
}

/// A tensor of a record of `elements` numbers.
struct TorchTensor {
  std::string type = "torch\nFloatStorage";
  std::string record = "0";
  std::int32_t elements = 4;
  std::int32_t first = 0;
  std::vector<std::int32_t> shape{2, 2};
  std::vector<std::int32_t> strides{2, 1};
};
inline std::string pickled(TorchTensor const& tensor) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled(std::string{"storage"}) + "c" +
         tensor.type + "\n" + pickled(tensor.record) + pickled(std::string{"cpu"}) +
         pickled(tensor.elements) + "tQ" + pickled(tensor.first) + pickled(tensor.shape) +
         pickled(tensor.strides) + "\x89}tR";
}
/// A dictionary, whose keys and values are opcodes.
inline std::string state_dict(std::string const& items) {
  return "\x80\x02}(" + items + "u.";
}

using Records = std::vector<std::pair<std::string, std::string>>;

/// A ZIP of these records. `wide`: sizes and places have 64 bits.
inline std::string archive(Records const& records, bool wide = false, std::uint16_t method = 0) {
  std::string file;
  std::string directory;
  for (auto const& [name, bytes] : records) {
    auto const size = static_cast<std::uint32_t>(bytes.size());
    auto const begin = static_cast<std::uint32_t>(file.size());
    auto const name_size = static_cast<std::uint16_t>(name.size());
    std::uint32_t const in_field = 0xffffffff;
    std::string const extra = wide ? bytes_of<std::uint16_t>({7, 2, 0, 1, 24}) +
                                         bytes_of<std::uint64_t>({size, size, begin})
                                   : "";
    file += "PK\3\4" + bytes_of<std::uint16_t>({20, 0, method, 0, 0}) +
            bytes_of<std::uint32_t>({0, size, size}) + bytes_of<std::uint16_t>({name_size, 3}) +
            name + "pad" + bytes;
    directory += "PK\1\2" + bytes_of<std::uint16_t>({20, 20, 0, method, 0, 0}) +
                 bytes_of<std::uint32_t>({0, wide ? in_field : size, wide ? in_field : size}) +
                 bytes_of<std::uint16_t>({name_size, static_cast<std::uint16_t>(extra.size()), 1}) +
                 std::string(8, '\0') + bytes_of<std::uint32_t>({wide ? in_field : begin}) + name +
                 extra + "c";
  }
  auto const begin = static_cast<std::uint32_t>(file.size());
  auto const size = static_cast<std::uint32_t>(directory.size());
  auto const count = static_cast<std::uint16_t>(records.size());
  file += directory;
  if (wide) {
    auto const end = file.size();
    file += "PK\6\6" + bytes_of<std::uint64_t>({44}) + std::string(28, '\0') +
            bytes_of<std::uint64_t>({size, begin}) + "PK\6\7" + std::string(4, '\0') +
            bytes_of<std::uint64_t>({end}) + std::string(4, '\0');
  }
  return file + "PK\5\6" + bytes_of<std::uint16_t>({0, 0, count, count}) +
         bytes_of<std::uint32_t>({wide ? 0xffffffff : size, wide ? 0xffffffff : begin}) +
         bytes_of<std::uint16_t>({0});
}

/// Records of a state_dict as torch.save writes it.
inline Records torch_records(std::string const& pickle, std::string const& numbers) {
  return {{"m/data.pkl", pickle}, {"m/byteorder", "little"}, {"m/data/0", numbers}};
}

}  // namespace offstage::huggingface
