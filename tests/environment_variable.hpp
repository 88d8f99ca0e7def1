#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

namespace offstage {

/// A variable of the environment while this exists; then it is as before.
class EnvironmentVariable {
 public:
  EnvironmentVariable(std::string name, std::string const& value) : name_{std::move(name)} {
    if (char const* const before = std::getenv(name_.c_str()); before != nullptr) {
      before_ = before;
    }
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  ~EnvironmentVariable() {
    if (before_) {
      ::setenv(name_.c_str(), before_->c_str(), 1);
    } else {
      ::unsetenv(name_.c_str());
    }
  }
  EnvironmentVariable(EnvironmentVariable const&) = delete;
  EnvironmentVariable& operator=(EnvironmentVariable const&) = delete;

 private:
  std::string name_;
  std::optional<std::string> before_;
};

}  // namespace offstage
