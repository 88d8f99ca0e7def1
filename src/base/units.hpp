#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace offstage {

using Bytes = std::int64_t;
using Seconds = std::chrono::duration<double>;

constexpr Bytes KiB = 1024;
constexpr Bytes MiB = 1024 * KiB;
constexpr Bytes GiB = 1024 * MiB;

/// Reads a size: digits, an optional fraction, and one of B, kB, KB, MB, GB, TB (powers of ten),
/// KiB, MiB, GiB, TiB, or K, M, G, T, k, m, g (powers of 1024). No unit means bytes.
/// Errors: UsageError that says what was read and what would be right, without naming a key.
[[nodiscard]] Bytes parse_bytes(std::string_view text);

/// Reads a count of parameters or tokens: digits, an optional fraction, and k / K, M, B / G or T
/// (powers of ten).
/// Errors: as parse_bytes.
[[nodiscard]] std::int64_t parse_count(std::string_view text);

/// Reads a duration: `80us`, `250ms`, `90s` or `90sec`, `30min` or `30m`, `2h`, `1d`; a bare number
/// means seconds. Also `MM:SS` and `HH:MM:SS`, and as Slurm has them `D-HH`, `D-HH:MM` and
/// `D-HH:MM:SS`.
/// Errors: as parse_bytes.
[[nodiscard]] Seconds parse_duration(std::string_view text);

/// "1.50 GiB", "640 B": three significant figures.
[[nodiscard]] std::string format_bytes(Bytes bytes);

/// "1 h 02 min", "3 min 20 s", "4.2 s".
[[nodiscard]] std::string format_duration(Seconds duration);

[[nodiscard]] constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

}  // namespace offstage
