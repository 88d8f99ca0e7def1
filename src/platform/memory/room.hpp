#pragma once

#include <string>

#include "base/units.hpp"

namespace offstage::memory {

/// For libraries that crash where they get no memory: makes sure that this process can map so many
/// bytes more. It looks where the system may refuse them: under ulimit -v or -d, and with
/// vm.overcommit_memory=2. Elsewhere nothing is refused, the kernel kills, and a call costs
/// nothing.
/// Threads: any; whoever maps meanwhile may take the room away.
/// Errors:  Error (1) that names `user`, as in "oneDNN", and the limits.
void require_room(Bytes bytes, std::string const& user);

}  // namespace offstage::memory
