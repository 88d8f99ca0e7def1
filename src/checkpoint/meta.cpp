#include "checkpoint/meta.hpp"

#include <fmt/format.h>

namespace offstage::checkpoint {

std::string recorded(Meta const& meta, std::string_view key) {
  std::string const lines = fmt::format("\n{}", meta.configuration);
  std::string const start = fmt::format("\n{}=", key);
  auto const at = lines.find(start);
  if (at == std::string::npos) {
    return {};
  }
  auto const begin = at + start.size();
  return lines.substr(begin, lines.find('\n', begin) - begin);
}

}  // namespace offstage::checkpoint
