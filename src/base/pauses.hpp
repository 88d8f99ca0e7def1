#pragma once

#include <array>

#include "base/units.hpp"

namespace offstage {

/// Pauses before the second try, the third and so on of what a file system refused. They are for one
/// that fails over or has evicted this client, for a drive that is being reset, or for a table of
/// open files that is full for a moment.
constexpr std::array pauses_between_tries{Seconds{0.1}, Seconds{0.4}, Seconds{1.5}};

}  // namespace offstage
