#pragma once

#include <sys/types.h>

#include <string>

namespace offstage {

/// A user in words: "anna (user 1001)", or "user 1001" where nobody knows the name.
[[nodiscard]] std::string words_for_user(uid_t user);

/// "; it belongs to anna (user 1001)" where `path` itself is another user's, else empty: what
/// explains that the system refused something.
[[nodiscard]] std::string foreign_words(std::string const& path);

}  // namespace offstage
