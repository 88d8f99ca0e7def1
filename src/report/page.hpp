#pragma once

#include <string>
#include <vector>

#include "report/run.hpp"

namespace offstage::report {

/// A whole HTML page on one or several runs: pictures are SVG inside it, and nothing is fetched
/// from anywhere nor run as a script. Light or dark as the reader's system is.
[[nodiscard]] std::string page(std::vector<Run> const& runs);

}  // namespace offstage::report
