#pragma once

#include <cstdint>
#include <string>

namespace offstage::checkpoint {

/// A save of a step that another run's checkpoint has already: that one is renamed to replaced-step-N, comes back if
/// the save fails, and is removed once the save is complete. Every rename is durable when it returns.
///
/// Errors: IoError.

/// "replaced-step-000000100".
[[nodiscard]] std::string replaced_name(std::int64_t step);

/// Gives the name of `step` free, if anything has it. Nothing has the other name: settle_replaced() came before.
void put_away(std::string const& directory, std::int64_t step);

/// Gives the name back, if something was put away and nothing has the name now.
void bring_back(std::string const& directory, std::int64_t step);

/// Ends what a killed save left: where the new checkpoint has its master the old one is removed, elsewhere what
/// there is of the new one is removed and the old one comes back.
void settle_replaced(std::string const& directory);

}  // namespace offstage::checkpoint
