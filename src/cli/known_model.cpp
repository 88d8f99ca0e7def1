#include "cli/known_model.hpp"

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/regular_file.hpp"
#include "checkpoint/listing.hpp"
#include "convert/convert.hpp"

namespace offstage::cli {
namespace {

// Every rank looks; what is damaged the restart says.
constexpr auto unsaid = checkpoint::Warn::no;

std::optional<KnownModel> newest_in(std::string const& path) {
  auto const newest = checkpoint::newest_complete(path, unsaid);
  if (!newest) {
    return std::nullopt;
  }
  return KnownModel{newest->meta.model, fmt::format("checkpoint {}", newest->path)};
}

std::optional<KnownModel> checkpointed(config::CheckpointConfig const& checkpoint) {
  if (checkpoint.resume == "none") {
    return std::nullopt;
  }
  if (checkpoint.resume != "auto") {
    return newest_in(convert::resolve_checkpoint(checkpoint.resume, unsaid));
  }
  if (!is_visible(checkpoint.dir) || !is_directory(checkpoint.dir)) {
    return std::nullopt;
  }
  try {
    return newest_in(checkpoint.dir);
  } catch (DataError const&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<KnownModel> find_known_model(config::RunConfig const& config) {
  if (auto found = checkpointed(config.checkpoint)) {
    return found;
  }
  std::string const& from = config.train.init_from;
  if (from.empty()) {
    return std::nullopt;
  }
  return KnownModel{convert::open_parameters(from, "train.init-from", unsaid)->shape(),
                    fmt::format("train.init-from={}", from), /*begins=*/true};
}

}  // namespace offstage::cli
