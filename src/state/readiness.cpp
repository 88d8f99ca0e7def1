#include "state/readiness.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::state {

Readiness::Readiness(std::vector<Subgroup> const& subgroups)
    : subgroups_{subgroups}, ready_(subgroups.size(), true) {}

void Readiness::begin() {
  std::scoped_lock const lock{mutex_};
  ready_.assign(subgroups_.size(), false);
  error_ = nullptr;
}

void Readiness::expect(std::int64_t subgroup) {
  std::scoped_lock const lock{mutex_};
  require(subgroup >= 0 && subgroup < std::ssize(ready_), "Readiness: no such subgroup");
  ready_[static_cast<std::size_t>(subgroup)] = false;
}

void Readiness::done(std::int64_t subgroup) {
  {
    std::scoped_lock const lock{mutex_};
    require(subgroup >= 0 && subgroup < std::ssize(ready_), "Readiness: no such subgroup");
    ready_[static_cast<std::size_t>(subgroup)] = true;
  }
  changed_.notify_all();
}

void Readiness::finish() {
  {
    std::scoped_lock const lock{mutex_};
    ready_.assign(subgroups_.size(), true);
  }
  changed_.notify_all();
}

void Readiness::fail(std::exception_ptr error) noexcept {
  {
    std::scoped_lock const lock{mutex_};
    if (!error_) {
      error_ = std::move(error);
    }
  }
  changed_.notify_all();
}

void Readiness::wait(std::int64_t begin, std::int64_t end) {
  auto const first = std::ranges::upper_bound(
                         subgroups_, begin, {},
                         [](Subgroup const& subgroup) { return subgroup.begin + subgroup.size; }) -
                     subgroups_.begin();
  auto const last =
      std::ranges::lower_bound(subgroups_, end, {}, &Subgroup::begin) - subgroups_.begin();
  std::unique_lock lock{mutex_};
  auto const settled = [&] {
    return error_ || first >= last ||
           std::all_of(ready_.begin() + first, ready_.begin() + last, std::identity{});
  };
  if (!settled()) {
    Waiting const waiting{"updated parameters"};
    changed_.wait(lock, settled);
  }
  if (error_) {
    std::rethrow_exception(error_);
  }
}

}  // namespace offstage::state
