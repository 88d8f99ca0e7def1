#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "checkpoint/meta.hpp"

namespace offstage::checkpoint {

/// State of a checkpoint's files, as far as names and sizes tell.
enum class Completeness {
  complete,    ///< the master is sound, and every file that it names is there in the right size
  partial,     ///< the same at level 1 or 3, but files of some ranks are on other nodes
  unfinished,  ///< there is no master: the save did not come to its end, and nothing is lost
  incomplete,  ///< a file that the master names is missing or has another size
  unreadable,  ///< the master is damaged
  newer,       ///< the master is of a newer program
  refused,     ///< a file cannot be read at present, or not by this user
};

/// "complete", "partial", ...
[[nodiscard]] char const* name_of(Completeness state);

/// One entry of a listing.
struct Listed {
  std::string path;
  int level = 2;  ///< 1: node storage; 3: copies of another node's checkpoint there
  Completeness state{};
  std::string problem;  ///< reason why it is not complete or not readable; empty if it is both
  Meta meta;            ///< filled if complete or partial
  Bytes bytes{};
};

/// Whether a search for checkpoints logs its warnings: of many ranks one is to.
enum class Warn { yes, no };

/// Returns whether list() would find any checkpoint. Errors: IoError.
[[nodiscard]] bool holds_any(std::string const& path);
/// All checkpoints of a directory, oldest first, and those of its run's levels 1 and 3 that this
/// node has; `path` may be a step directory itself, or a checkpoint.local.
/// Not collective.
/// A level 1 that the run's record names is left out with a warning where it cannot be read, and
/// where it is neither this user's nor root's nor that of the record's owner or the directory's.
/// Errors: DataError if there is none, IoError if the directory cannot be read.
[[nodiscard]] std::vector<Listed> list(std::string const& path, Warn warn = Warn::yes);
/// Checkpoints of list() whose directories are named by this step, in any level; no other is looked
/// at. Errors: those of list().
[[nodiscard]] std::vector<Listed> list_step(std::string const& path, std::int64_t step);
/// The newest complete one of list(); no older one is looked at. A warning names newer ones that
/// are damaged. None if there is none. Errors: those of list(); IoError if a newer one cannot be
/// read.
[[nodiscard]] std::optional<Listed> newest_complete(std::string const& path, Warn warn = Warn::yes);

/// Reads every file that a checkpoint names, of levels 1 and 3 those on this node, and compares all
/// checksums. Returns the problems found. Not collective.
[[nodiscard]] std::vector<std::string> verify(Listed const& checkpoint);

/// Returns true if a checkpoint that was listed with a master has none any more: a run removed it
/// meanwhile, as it removes old ones; false also if it cannot be looked at.
[[nodiscard]] bool was_removed(Listed const& checkpoint);

/// Compares the planes of two complete checkpoints of one model bit for bit. Ranks, subgroup sizes
/// and model.max-sequence may differ. Returns one line per tensor and plane that differs (how many
/// values, the first one's element, the largest difference), and one per plane that they do not
/// have alike. Reads chunk by chunk. Not collective.
/// Errors: DataError if the models differ or a file is damaged.
[[nodiscard]] std::vector<std::string> compare(Listed const& a, Listed const& b);

}  // namespace offstage::checkpoint
