#include "base/error.hpp"

#include <system_error>

#include "base/printable.hpp"

namespace offstage {

Error::Error(ExitCode code, std::string const& message)
    : std::runtime_error{printable(message, longest_message)}, code_{code} {}

IoError::IoError(std::string const& action, std::string const& path, int error_number)
    : IoError{action + " " + path + ": " + std::generic_category().message(error_number),
              error_number} {}

PreconditionError::PreconditionError(std::string const& message, std::source_location where)
    : Error{ExitCode::internal, "internal error: " + message + " at " + where.file_name() + ":" +
                                    std::to_string(where.line())} {}

}  // namespace offstage
