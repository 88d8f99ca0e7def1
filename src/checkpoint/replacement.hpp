#pragma once

#include <cstdint>
#include <string>

namespace offstage::checkpoint {

/// Replacement of another run's checkpoint by a save of the same step. The old checkpoint is
/// renamed to replaced-step-N, gets its name back if the save fails, and is removed once the save
/// is complete. Every rename is durable when the function returns.
///
/// Errors: IoError.

/// The name of a checkpoint that is put away: "replaced-step-000000100".
[[nodiscard]] std::string replaced_name(std::int64_t step);

/// Renames the checkpoint of `step`, if there is one, so that its name is free. Call
/// settle_replaced() before, so that the other name is free as well.
void put_away(std::string const& directory, std::int64_t step);

/// Gives a checkpoint that was put away its name back, if there is one. Errors: also IoError if a
/// directory that is not empty has the name now, as files of others in a failed save's may leave.
void bring_back(std::string const& directory, std::int64_t step);

/// Ends a replacement that a killed save left. If the new checkpoint has its master, the old one is
/// removed. Otherwise the files of the new one are removed, and the old one gets its name back.
void settle_replaced(std::string const& directory);

}  // namespace offstage::checkpoint
