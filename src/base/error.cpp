#include "base/error.hpp"

#include <sys/statvfs.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/printable.hpp"

namespace offstage {

Error::Error(ExitCode code, std::string const& message)
    : std::runtime_error{printable(message, longest_message)}, code_{code} {}

std::string error_text(int error_number, std::string const& path) {
  std::string text = std::generic_category().message(error_number);
  if (error_number != ENOSPC) {
    return text + (error_number == EMFILE ? " (raise ulimit -n)" : "");
  }
  std::error_code ignored;
  auto there = std::filesystem::absolute(path, ignored);
  while (there.has_relative_path() && !std::filesystem::exists(there, ignored)) {
    there = there.parent_path();
  }
  struct statvfs facts {};
  bool const has_no_inodes =
      statvfs(there.c_str(), &facts) == 0 && facts.f_files > 0 && facts.f_favail == 0;
  return text + (has_no_inodes ? " (it has no inodes left; see df -i)" : "");
}

IoError::IoError(std::string const& action, std::string const& path, int error_number)
    : IoError{action + " " + path + ": " + error_text(error_number, path), error_number} {}

PreconditionError::PreconditionError(std::string const& message, std::source_location where)
    : Error{ExitCode::internal, "internal error: " + message + " at " + where.file_name() + ":" +
                                    std::to_string(where.line())} {}

}  // namespace offstage
