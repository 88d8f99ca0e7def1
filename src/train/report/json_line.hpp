#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace offstage::train {

/// A record as a line of JSON, without its end. Names of directories and jobs are their users':
/// bytes that are no UTF-8 are replaced, and none beyond ASCII reaches the terminal of who looks at
/// the line.
inline std::string json_line(nlohmann::ordered_json const& record) {
  constexpr bool in_ascii = true;
  return record.dump(-1, ' ', in_ascii, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace offstage::train
