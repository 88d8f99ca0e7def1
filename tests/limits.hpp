#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <stdexcept>

#include "base/units.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool address_space_is_the_sanitizers = true;
#else
constexpr bool address_space_is_the_sanitizers = false;
#endif

namespace offstage {

/// A lower limit of this process, for a scope.
class Limit {
 public:
  using Resource = decltype(RLIMIT_AS);

  Limit(Resource resource, Bytes most) : resource_{resource} {
    if (getrlimit(resource_, &before_) != 0) {
      throw std::runtime_error{"getrlimit"};
    }
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(most);
    if (setrlimit(resource_, &now) != 0) {
      throw std::runtime_error{"setrlimit"};
    }
  }
  ~Limit() { setrlimit(resource_, &before_); }
  Limit(Limit const&) = delete;
  Limit& operator=(Limit const&) = delete;

 private:
  Resource resource_;
  rlimit before_{};
};

/// What is mapped now.
inline Bytes mapped_bytes() {
  std::ifstream file{"/proc/self/statm"};
  Bytes pages{};
  file >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

/// This process can map so many bytes more, for a scope. Not under sanitizers, which map terabytes.
class AddressSpace : public Limit {
 public:
  explicit AddressSpace(Bytes room) : Limit{RLIMIT_AS, mapped_bytes() + room} {}
};

/// No file of this process grows beyond so many bytes, for a scope: as on a device that is full.
class FileSize : public Limit {
 public:
  explicit FileSize(Bytes most) : Limit{RLIMIT_FSIZE, most} {
    before_ = std::signal(SIGXFSZ, SIG_IGN);
  }
  ~FileSize() { std::signal(SIGXFSZ, before_); }

 private:
  void (*before_)(int);
};

}  // namespace offstage
