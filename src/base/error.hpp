#pragma once

#include <cstdint>
#include <source_location>
#include <stdexcept>
#include <string>

namespace offstage {

/// Exit codes of the process; scripts rely on the numbers (README, "Exit codes").
enum class ExitCode : int {
  done = 0,
  other = 1,      ///< locked by another run, anything that fits nowhere else
  usage = 64,     ///< usage, unknown keys, impossible combinations
  data = 65,      ///< bad input data, another model's checkpoint
  internal = 70,  ///< a bug in Offstage
  io = 74,        ///< I/O errors, directories, space
  more = 75,      ///< saved, more to do: the same command goes on
};

/// Base of every error Offstage throws. `what()` is one line for the user; it names the file, key
/// or path and what would be right. It is printable and of at most `longest_message` characters,
/// whatever names are in it (base/printable.hpp).
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, std::string const& message);
  [[nodiscard]] ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// A key, an option or a combination of them is wrong (64).
class UsageError : public Error {
 public:
  explicit UsageError(std::string const& message) : Error{ExitCode::usage, message} {}
};

/// Input data is wrong: text, tokens, checkpoints (65).
class DataError : public Error {
 public:
  explicit DataError(std::string const& message) : Error{ExitCode::data, message} {}
};

/// The text of an errno that an operation on `path` had. Where inodes are used up, it says so: "No
/// space left on device (it has no inodes left; see df -i)". Of open files it names the limit.
[[nodiscard]] std::string error_text(int error_number, std::string const& path);

/// The operating system or a library refused an operation on a path (74).
class IoError : public Error {
 public:
  explicit IoError(std::string const& message) : Error{ExitCode::io, message} {}
  /// `error_number` is already in the message.
  IoError(std::string const& message, int error_number)
      : Error{ExitCode::io, message}, error_number_{error_number} {}
  /// `action` as in "cannot open"; appends the path and the text of `error_number`.
  IoError(std::string const& action, std::string const& path, int error_number);

  /// The errno of the operating system; 0 if the cause has none.
  [[nodiscard]] int error_number() const noexcept { return error_number_; }

 private:
  int error_number_ = 0;
};

/// Another run holds a directory (1).
class LockedError : public Error {
 public:
  explicit LockedError(std::string const& message) : Error{ExitCode::other, message} {}
};

/// The caller broke a documented precondition: a bug (70). `what()` ends with "at file:line".
class PreconditionError : public Error {
 public:
  explicit PreconditionError(std::string const& message,
                             std::source_location where = std::source_location::current());
};

inline void require(bool condition, char const* message,
                    std::source_location where = std::source_location::current()) {
  if (!condition) {
    throw PreconditionError{message, where};
  }
}

}  // namespace offstage
