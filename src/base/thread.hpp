#pragma once

#include <functional>
#include <string>
#include <thread>

namespace offstage {

/// A thread with a name that debuggers and `top -H` show (15 characters at most). Joined at
/// destruction. The body must not throw; hand errors over in a std::exception_ptr.
class NamedThread {
 public:
  NamedThread(std::string const& name, std::function<void()> body);
  ~NamedThread() { join(); }

  NamedThread(NamedThread const&) = delete;
  NamedThread& operator=(NamedThread const&) = delete;
  NamedThread(NamedThread&&) noexcept = default;
  NamedThread& operator=(NamedThread&&) = delete;

  /// Waits for the end; no effect the second time.
  void join() noexcept;

 private:
  std::thread thread_;
};

}  // namespace offstage
