#include "train/saves/best_loss.hpp"

#include <cerrno>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/regular_file.hpp"

namespace offstage::train {

std::vector<Validation> read_validations(std::string const& metrics) {
  std::vector<Validation> found;
  if (!is_there(metrics)) {
    return found;
  }
  std::ifstream file{metrics};
  if (!file) {
    throw IoError{"run.dir: cannot open", metrics, errno};
  }
  for (std::string line; std::getline(file, line);) {
    auto const record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object() || !record.contains("valid_loss") || !record.contains("step") ||
        !record["step"].is_number_integer()) {
      continue;
    }
    auto const& loss = record["valid_loss"];
    Validation const validation{record["step"].get<std::int64_t>(),
                                loss.is_number() ? loss.get<double>() : std::nan("")};
    if (!found.empty() && found.back().step == validation.step) {
      found.back() = validation;  // a restart has made the validation again
    } else {
      found.push_back(validation);
    }
  }
  if (file.bad()) {
    throw IoError{"run.dir: cannot read", metrics, errno};
  }
  return found;
}

bool BestLoss::add(Validation const& validation) {
  last_ = validation.step;
  bool const is_best = std::isfinite(validation.loss) && (!any_ || validation.loss < best_.loss);
  if (is_best) {
    any_ = true;
    best_ = validation;
    since_ = 0;
  } else {
    ++since_;
  }
  return is_best;
}

}  // namespace offstage::train
