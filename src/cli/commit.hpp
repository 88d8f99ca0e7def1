#pragma once

namespace offstage::cli {

/// The commit of the sources, "9e94a22f1c03", with "+changes" where they were changed since;
/// "unknown" outside of git. It stands in this room alone: a commit links nothing again but the program and its tests.
[[nodiscard]] char const* commit() noexcept;

}  // namespace offstage::cli
