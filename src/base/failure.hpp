#pragma once

#include <exception>
#include <string>

#include "base/error.hpp"

namespace offstage {

/// Meaning of an exception, of any kind, for the user.
struct Failure {
  ExitCode code;
  std::string text;      ///< one line
  int error_number = 0;  ///< IoError's
};

/// An Error says it itself; no memory is 1; what the operating system refused to the standard
/// library (files, threads, locks) is 74; anything else is a bug, 70. Errors: std::bad_alloc.
[[nodiscard]] Failure failure_of(std::exception_ptr const& error);

}  // namespace offstage
