#pragma once

#include <string>

namespace offstage {

/// "6.90 GB/s", "470 kB/s": three significant figures, in powers of ten.
[[nodiscard]] std::string format_rate(double bytes_per_second);

}  // namespace offstage
