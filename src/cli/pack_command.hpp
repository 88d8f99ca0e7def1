#pragma once

#include "cli/commands.hpp"

namespace offstage::cli {

/// `offstage data pack`; the arguments come without these words.
ExitCode pack_command(Arguments const& arguments);

}  // namespace offstage::cli
