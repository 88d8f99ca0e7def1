#include "train/saves/best_loss.hpp"

#include <cerrno>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/regular_file.hpp"

namespace offstage::train {

namespace {

/// Calls take(record) for each line that is a JSON object; none if there is no such file.
template <class Take>
void for_each_object(std::string const& metrics, Take const& take) {
  if (!is_there(metrics)) {
    return;
  }
  std::ifstream file{metrics};
  if (!file) {
    throw IoError{"run.dir: cannot open", metrics, errno};
  }
  for (std::string line; std::getline(file, line);) {
    auto const record = nlohmann::json::parse(line, nullptr, false);
    if (record.is_object()) {
      take(record);
    }
  }
  if (file.bad()) {
    throw IoError{"run.dir: cannot read", metrics, errno};
  }
}

}  // namespace

std::vector<Validation> read_validations(std::string const& metrics) {
  std::vector<Validation> found;
  for_each_object(metrics, [&](nlohmann::json const& record) {
    if (!record.contains("valid_loss") || !record.contains("step") ||
        !record["step"].is_number_integer()) {
      return;
    }
    auto const& loss = record["valid_loss"];
    bool const counts = record.value("counts", nlohmann::json(true)) != false;
    Validation const validation{record["step"].get<std::int64_t>(),
                                counts && loss.is_number() ? loss.get<double>() : std::nan("")};
    if (!found.empty() && found.back().step == validation.step) {
      found.back() = validation;  // a restart has made the validation again
    } else {
      found.push_back(validation);
    }
  });
  return found;
}

bool has_start(std::string const& metrics, std::int64_t step) {
  bool found = false;
  for_each_object(metrics, [&](nlohmann::json const& record) {
    auto const start = record.find("start");
    found = found || (start != record.end() && start->is_number_integer() &&
                      start->get<std::int64_t>() == step);
  });
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
