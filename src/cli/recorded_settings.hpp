#pragma once

#include <map>
#include <string>
#include <string_view>

namespace offstage::cli {

/// Values by key, "train.steps", of the text of an effective.cfg that any version has written. Keys
/// are taken as they are, known or not. Comments that are lines, as defaults that derive from other
/// keys, are taken too. Values of a repeated key stand in a row. Lines of no known form are passed
/// over. Pure.
[[nodiscard]] std::map<std::string, std::string> read_recorded_settings(std::string_view text);

}  // namespace offstage::cli
