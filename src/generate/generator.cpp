#include "generate/generator.hpp"

#include <algorithm>
#include <cstddef>

#include "base/error.hpp"

namespace offstage::generate {

void generate(Task const& task, Logits const& logits,
              std::function<bool(std::int32_t)> const& on_token,
              std::function<void()> const& on_full) {
  require(!task.prompt.empty(), "generate: the prompt has at least one token");
  require(task.window >= 1 && task.vocab >= 1, "generate: window and vocabulary are at least 1");
  std::vector<std::int32_t> context = task.prompt;
  auto const window = static_cast<std::size_t>(task.window);
  std::uint64_t const first_number = std::uint64_t{task.number} << 32;
  bool told = false;
  for (std::int64_t position = 0; position < task.tokens; ++position) {
    if (context.size() > window) {
      auto const kept = static_cast<std::ptrdiff_t>(std::max<std::size_t>(1, window / 2));
      context.erase(context.begin(), context.end() - kept);
      if (!told) {
        on_full();
      }
      told = true;
    }
    auto const all = logits(context);
    auto const usable = all.first(std::min(all.size(), static_cast<std::size_t>(task.vocab)));
    std::int32_t const token =
        sample(usable, task.sampling, first_number + static_cast<std::uint64_t>(position));
    if (std::ranges::find(task.ends, token) != task.ends.end() || !on_token(token)) {
      return;
    }
    context.push_back(token);
  }
}

}  // namespace offstage::generate
