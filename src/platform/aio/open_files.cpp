#include "platform/aio/open_files.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <limits>

namespace offstage::aio {

std::int64_t allow_open_files(std::int64_t files) noexcept {
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return most;
  }
  auto const wanted = static_cast<rlim_t>(files);
  if (limit.rlim_cur < wanted) {
    rlimit const raised{std::min(wanted, limit.rlim_max), limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) {
      limit = raised;
    }
  }
  return limit.rlim_cur > static_cast<rlim_t>(most) ? most
                                                    : static_cast<std::int64_t>(limit.rlim_cur);
}

}  // namespace offstage::aio
