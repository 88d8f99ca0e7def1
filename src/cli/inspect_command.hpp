#pragma once

#include "cli/commands.hpp"

namespace offstage::cli {

/// `offstage data inspect`; the arguments come without these words.
ExitCode inspect_command(Arguments const& arguments);

}  // namespace offstage::cli
