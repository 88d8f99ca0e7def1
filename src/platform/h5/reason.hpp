#pragma once

#include <string>

namespace offstage::h5 {

/// Why an HDF5 call failed.
struct Reason {
  std::string text;
  int error_number = 0;  ///< the errno behind it; 0 if there is none
};

/// HDF5's reason for its last failure, in which names out of the file may stand; clears the error
/// stack.
[[nodiscard]] Reason innermost_reason();

/// Returns whether the system gives some memory, more than HDF5 takes for one call.
[[nodiscard]] bool has_memory_to_spare();

}  // namespace offstage::h5
