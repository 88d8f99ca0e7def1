#pragma once

#include <cstdint>

namespace offstage {

/// Elements per chunk: the unit in which layers are dealt to ranks and norms are summed. Fixed for
/// ever: it is part of the numbers (the order of sums) and of the checkpoint format.
constexpr std::int64_t chunk_elements = 4096;

}  // namespace offstage
