#include "train/saves/stop.hpp"

namespace offstage::train {

char const* reason_of(Stop stop) {
  switch (stop) {
    case Stop::signal:
      return "a signal came";
    case Stop::file:
      return "STOP was found in run.dir";
    case Stop::max_time:
      return "train.max-time is near";
    case Stop::job_end:
      return "the end of the job is near";
    case Stop::patience:
      return "validations have not become better (train.patience)";
    case Stop::none:
      break;
  }
  return "";
}

char const* name_of(Stop stop) {
  switch (stop) {
    case Stop::signal:
      return "signal";
    case Stop::file:
      return "stop-file";
    case Stop::max_time:
      return "max-time";
    case Stop::job_end:
      return "job-end";
    case Stop::patience:
      return "patience";
    case Stop::none:
      break;
  }
  return "done";
}

bool is_urgent(Stop stop) {
  return stop == Stop::signal || stop == Stop::max_time || stop == Stop::job_end;
}

}  // namespace offstage::train
