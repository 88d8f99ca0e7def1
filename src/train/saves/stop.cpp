#include "train/saves/stop.hpp"

#include <array>
#include <cstddef>

namespace offstage::train {
namespace {

struct Words {
  char const* name;
  char const* reason;
};

/// In the order of Stop.
constexpr std::array<Words, 6> words{
    {{"done", ""},
     {"signal", "a signal came"},
     {"stop-file", "STOP was found in run.dir"},
     {"max-time", "train.max-time is near"},
     {"job-end", "the end of the job is near"},
     {"patience", "validations have not become better (train.patience)"}}};
static_assert(static_cast<std::size_t>(Stop::patience) + 1 == words.size());

Words const& words_of(Stop stop) {
  return words.at(static_cast<std::size_t>(stop));
}

}  // namespace

char const* reason_of(Stop stop) {
  return words_of(stop).reason;
}

char const* name_of(Stop stop) {
  return words_of(stop).name;
}

bool is_urgent(Stop stop) {
  return stop == Stop::signal || stop == Stop::max_time || stop == Stop::job_end;
}

}  // namespace offstage::train
