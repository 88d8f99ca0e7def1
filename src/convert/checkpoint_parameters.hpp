#pragma once

#include <span>
#include <string>

#include "checkpoint/reader.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "state/initialize.hpp"

namespace offstage::convert {

/// The parameters of one checkpoint; every chunk is verified.
/// Memory: as checkpoint::Reader, and 4 MiB. Errors: DataError naming the file. It says so if a run
/// has removed the checkpoint meanwhile.
class CheckpointParameters final : public state::ParameterReader {
 public:
  explicit CheckpointParameters(std::string const& step_directory);

  [[nodiscard]] state::ModelShape const& shape() const override { return reader_.meta().model; }
  void read(int layer, state::ChunkRange chunks, std::span<float> out) override;

 private:
  void read_chunks(int layer, state::ChunkRange chunks, std::span<float> out);

  std::string step_directory_;
  checkpoint::Reader reader_;
  memory::HugeBuffer bounce_;  ///< for what is not aligned for direct I/O
};

}  // namespace offstage::convert
