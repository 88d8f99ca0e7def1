#pragma once

#include <string>
#include <vector>

#include "base/units.hpp"
#include "checkpoint/master.hpp"

namespace offstage::checkpoint {

/// What a step directory is, as far as names and sizes tell.
struct Inspection {
  enum class State {
    complete,    ///< the master is sound, every file it names is there in the right size
    partial,     ///< the same, but of level 1 or 3 some ranks have none: they are on other nodes
    unfinished,  ///< no master: a save that did not come to its end
    incomplete,  ///< a file that the master names is missing or has another size
    unreadable,  ///< the master is damaged, of a newer format, or cannot be read at present
  };
  State state{};
  std::string problem;       ///< names the file; empty if complete
  Master master;             ///< if complete, partial or incomplete
  Bytes bytes{};             ///< of all its files; if complete or partial
  std::vector<bool> here{};  ///< whether a rank's files are to be here; if complete or partial
};

[[nodiscard]] Inspection inspect(std::string const& step_directory);

/// The first problem in all that a complete checkpoint holds beside the state itself (1/2048 of it), empty if there is
/// none: manifests, and the checksums by which the state will be judged. What cannot be read is a problem, too.
[[nodiscard]] std::string problem_beside_state(std::string const& step_directory,
                                               Inspection const& complete);

}  // namespace offstage::checkpoint
