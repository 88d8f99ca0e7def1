#pragma once

#include <utility>

namespace offstage {

/// Calls `act` at the end of a scope, also where an error leaves it. `act` must not throw.
template <class Act>
class AtEnd {
 public:
  explicit AtEnd(Act act) : act_{std::move(act)} {}
  ~AtEnd() { act_(); }
  AtEnd(AtEnd const&) = delete;
  AtEnd& operator=(AtEnd const&) = delete;

 private:
  Act act_;
};

}  // namespace offstage
