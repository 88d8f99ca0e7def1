// Preloaded into a run (LD_PRELOAD): a limit of threads, as RLIMIT_NPROC is, which does not hold
// for root. Those that MPI starts for itself neither count nor fail.
//   THREADS_MOST=N    so many of the program's and of OpenMP's live at a time; one more fails with
//                     EAGAIN
//   THREADS_LOG=FILE  the most that lived at a time, of each process that ends in good order
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace {

std::atomic<long> living = 0;
std::atomic<long> most_living = 0;

long most_allowed() {
  char const* const value = std::getenv("THREADS_MOST");
  return value == nullptr ? std::numeric_limits<long>::max() : std::strtol(value, nullptr, 10);
}

/// By the library that calls: std::thread is started by libstdc++, a team by libgomp.
bool counts(void* caller) {
  Dl_info found{};
  return dladdr(caller, &found) != 0 && found.dli_fname != nullptr &&
         (std::strstr(found.dli_fname, "libstdc++") != nullptr ||
          std::strstr(found.dli_fname, "libgomp") != nullptr);
}

struct Work {
  void* (*body)(void*);
  void* argument;
};

void* run(void* given) {
  auto* const work = static_cast<Work*>(given);
  Work const mine = *work;
  delete work;
  void* const result = mine.body(mine.argument);
  --living;
  return result;
}

struct Report {
  ~Report() {
    char const* const path = std::getenv("THREADS_LOG");
    std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "a");
    if (file != nullptr) {
      std::fprintf(file, "%ld\n", most_living.load());
      std::fclose(file);
    }
  }
} const report;

}  // namespace

extern "C" int pthread_create(pthread_t* thread, pthread_attr_t const* attributes,
                              void* (*body)(void*), void* argument) {
  static auto* const real =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (!counts(__builtin_return_address(0))) {
    return real(thread, attributes, body, argument);
  }
  long const now = ++living;
  if (now > most_allowed()) {
    --living;
    usleep(20'000);  // the threads that did start get on meanwhile, and wait for what will not come
    return EAGAIN;
  }
  long seen = most_living.load();
  while (seen < now && !most_living.compare_exchange_weak(seen, now)) {
  }
  auto* const work = new Work{body, argument};
  int const error = real(thread, attributes, run, work);
  if (error != 0) {
    delete work;
    --living;
  }
  return error;
}
