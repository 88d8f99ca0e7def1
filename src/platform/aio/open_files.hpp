#pragma once

#include <cstdint>

namespace offstage::aio {

/// Lets this process have so many files open at a time, of whatever kind: raises its soft limit
/// (RLIMIT_NOFILE) as far as the hard one allows, if it is lower. Returns how many it may have
/// then.
std::int64_t allow_open_files(std::int64_t files) noexcept;

}  // namespace offstage::aio
