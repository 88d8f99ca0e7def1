#include "base/thread.hpp"

#include <pthread.h>

#include <utility>

namespace offstage {

NamedThread::NamedThread(std::string const& name, std::function<void()> body)
    : thread_{[label = name.substr(0, 15), work = std::move(body)] {
        pthread_setname_np(pthread_self(), label.c_str());
        work();
      }} {}

void NamedThread::join() noexcept {
  if (thread_.joinable()) {
    thread_.join();
  }
}

}  // namespace offstage
