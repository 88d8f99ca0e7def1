#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace offstage {

/// A thread with a name that debuggers and `top -H` show (15 characters at most). Joined at
/// destruction. The body must not throw; hand errors over in a std::exception_ptr.
/// Errors: IoError, of the constructor, if the system starts no more threads; it names the limits.
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

/// Lets no other thread of this process make a NamedThread while the result lives.
[[nodiscard]] std::unique_lock<std::recursive_mutex> hold_starts();

/// Starts so many threads, which live at the same time and do nothing, and ends them: for libraries
/// that end the process where they cannot start theirs. Errors: as of NamedThread.
void require_threads(int count, std::string const& name);

}  // namespace offstage
