#include "base/failing_allocations.hpp"

#include <dirent.h>
#include <link.h>
#include <malloc.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string_view>

#include "base/error.hpp"
#include "effort.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OFFSTAGE_SANITIZED 1
#else
#define OFFSTAGE_SANITIZED 0
#endif

namespace offstage {
namespace {

constexpr unsigned longest_run_s = 60;  // a run that hangs ends the test

// libc knows no objects: what its names answer with has to be global.
std::atomic<bool> active{};
std::atomic<std::int64_t> left{};     // allocations before the first that fails
std::atomic<std::int64_t> to_fail{};  // and how many do
std::atomic<std::int64_t> failures{};

/// Where the code of a library that is spared lies.
struct AddressRange {
  std::uintptr_t begin{};
  std::uintptr_t end{};
};
std::array<AddressRange, 8> spared{};

int find_spared(dl_phdr_info* library, std::size_t /*size*/, void* out) {
  auto*& next = *static_cast<AddressRange**>(out);
  std::string_view const name = library->dlpi_name;
  bool const wanted = name.find("/libhdf5") != name.npos || name.find("/libgomp") != name.npos;
  for (int i = 0; wanted && i < library->dlpi_phnum; ++i) {
    ElfW(Phdr) const& part = library->dlpi_phdr[i];
    if (part.p_type == PT_LOAD && (part.p_flags & PF_X) != 0 && next != &spared.back()) {
      std::uintptr_t const begin = library->dlpi_addr + part.p_vaddr;
      *next++ = {begin, begin + part.p_memsz};
    }
  }
  return 0;
}

/// `caller`: an address in the function that asks for memory.
bool fails(void const* caller) noexcept {
  if (!active.load(std::memory_order_relaxed)) {
    return false;
  }
  auto const address = reinterpret_cast<std::uintptr_t>(caller);
  for (AddressRange const& range : spared) {
    if (address >= range.begin && address < range.end) {
      return false;
    }
  }
  if (left.fetch_sub(1) > 0) {
    return false;
  }
  if (to_fail.fetch_sub(1) <= 0) {
    return false;
  }
  ++failures;
  errno = ENOMEM;
  return true;
}

std::int64_t open_descriptors() {
  DIR* const directory = opendir("/proc/self/fd");
  std::int64_t count = 0;
  while (directory != nullptr && readdir(directory) != nullptr) {
    ++count;
  }
  closedir(directory);
  return count;
}

StarvedRun run_starved(std::function<void()> const& work, std::int64_t first, std::int64_t times) {
  using End = StarvedRun::End;
  StarvedRun run{.first = first};
  std::int64_t const before = open_descriptors();
  alarm(longest_run_s);
  try {
    FailingAllocations const failing{first, times};
    work();
  } catch (std::bad_alloc const&) {
    run.end = End::no_memory;
  } catch (DataError const& error) {
    run = {.first = first, .end = End::error, .message = error.what(), .is_data_error = true};
  } catch (Error const& error) {
    run = {.first = first, .end = End::error, .message = error.what()};
  }
  alarm(0);
  run.more_descriptors = open_descriptors() - before;
  return run;
}

}  // namespace

FailingAllocations::FailingAllocations(std::int64_t first, std::int64_t times) {
  require(!active, "FailingAllocations: one at a time");
  AddressRange* next = spared.data();
  dl_iterate_phdr(find_spared, &next);
  failures = 0;
  left = first - 1;
  to_fail = times;
  active = true;
}

FailingAllocations::~FailingAllocations() {
  active = false;
}

std::int64_t FailingAllocations::failed() {
  return failures;
}

std::vector<StarvedRun> starve(std::function<void()> const& work, std::function<void()> const& tidy,
                               bool forever) {
  std::int64_t const times = forever ? std::numeric_limits<std::int64_t>::max() : 1;
  work();  // whatever is made once is made with memory
  tidy();
  std::vector<StarvedRun> bad;
  for (std::int64_t first = 1;; first += tries_all() ? 1 : 1 + first / 16) {
    StarvedRun run = run_starved(work, first, times);
    bool const over = FailingAllocations::failed() == 0;
    tidy();
    if (run.end != StarvedRun::End::good || run.more_descriptors != 0) {
      bad.push_back(std::move(run));
    }
    if (over) {
      return bad;
    }
  }
}

}  // namespace offstage

#if OFFSTAGE_SANITIZED

void* operator new(std::size_t size) {
  void* const made =
      offstage::fails(__builtin_return_address(0)) ? nullptr : std::malloc(size == 0 ? 1 : size);
  return made != nullptr ? made : throw std::bad_alloc{};
}
void* operator new(std::size_t size, std::nothrow_t const&) noexcept {
  return offstage::fails(__builtin_return_address(0)) ? nullptr : std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

#else

extern "C" {

void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);

void* malloc(std::size_t size) {
  return offstage::fails(__builtin_return_address(0)) ? nullptr : __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  return offstage::fails(__builtin_return_address(0)) ? nullptr : __libc_calloc(count, size);
}
void* realloc(void* memory, std::size_t size) {
  return offstage::fails(__builtin_return_address(0)) ? nullptr : __libc_realloc(memory, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  return offstage::fails(__builtin_return_address(0)) ? nullptr : __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  return offstage::fails(__builtin_return_address(0)) ? nullptr : __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  *memory =
      offstage::fails(__builtin_return_address(0)) ? nullptr : __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}

// Here too the caller is the library that wants it, not libc.
char* strdup(char const* text) {
  std::size_t const bytes = std::strlen(text) + 1;
  void* const made = offstage::fails(__builtin_return_address(0)) ? nullptr : __libc_malloc(bytes);
  return made == nullptr ? nullptr : static_cast<char*>(std::memcpy(made, text, bytes));
}
char* strndup(char const* text, std::size_t most) {
  std::size_t const length = strnlen(text, most);
  void* const made =
      offstage::fails(__builtin_return_address(0)) ? nullptr : __libc_calloc(1, length + 1);
  return made == nullptr ? nullptr : static_cast<char*>(std::memcpy(made, text, length));
}

}  // extern "C"

#endif
