#pragma once

#include <stdexcept>

namespace offstage::parquet {

/// Bytes that the format does not allow. The text says what is wrong, and not where.
class Damage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A part of the format that is not read here: "has the codec LZO".
class Unread : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace offstage::parquet
