#pragma once

#include <dlfcn.h>

#include <type_traits>

#include "fault_plan.hpp"

namespace faulty {

/// The function that the preloaded one of that name stands before.
template <class Function>
Function* real(char const* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

/// The call's result, or that of one that failed: -1 or null, with errno.
template <class Call>
auto fail_or(char const* kind, Place const& place, Call const& call) {
  using Result = std::invoke_result_t<Call>;
  if (int const error = fault_of(kind, place); error != 0) {
    errno = error;
    if constexpr (std::is_pointer_v<Result>) {
      return Result{nullptr};
    } else {
      return Result{-1};
    }
  }
  return call();
}

}  // namespace faulty
