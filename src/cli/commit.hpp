#pragma once

namespace offstage::cli {

/// The commit of the sources, "9e94a22f1c03", with "+changes" if they were changed since; also that
/// of an archive by git; else "unknown". It is in this room alone, so that a commit links nothing
/// again but the program and its tests.
[[nodiscard]] char const* commit() noexcept;

}  // namespace offstage::cli
