#pragma once

#include "base/units.hpp"

namespace offstage {

/// A part of a contiguous buffer: bytes [offset, offset + size).
struct Slice {
  Bytes offset{};
  Bytes size{};
};

}  // namespace offstage
