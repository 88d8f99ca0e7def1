#include "train/saves/best_loss.hpp"

#include <cerrno>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.hpp"
#include "base/regular_file.hpp"

namespace offstage::train {

namespace {

std::optional<std::int64_t> integer_of(nlohmann::json const& record, char const* key) {
  auto const found = record.find(key);
  return found != record.end() && found->is_number_integer()
             ? std::optional{found->get<std::int64_t>()}
             : std::nullopt;
}

void take(nlohmann::json const& record, EarlierRecords& all) {
  if (auto const start = integer_of(record, "start")) {
    all.starts.push_back(*start);
  }
  auto const step = integer_of(record, "step");
  auto const loss = record.find("valid_loss");
  if (!step || loss == record.end()) {
    return;
  }
  auto const counted = record.find("counts");
  bool const counts = counted == record.end() || *counted != false;
  Validation const validation{*step,
                              counts && loss->is_number() ? loss->get<double>() : std::nan("")};
  if (!all.validations.empty() && all.validations.back().step == *step) {
    all.validations.back() = validation;  // a restart has made the validation again
  } else {
    all.validations.push_back(validation);
  }
}

}  // namespace

EarlierRecords read_earlier_records(std::string const& metrics) {
  EarlierRecords all;
  if (!is_there(metrics)) {
    return all;
  }
  std::ifstream file{metrics};
  if (!file) {
    throw IoError{"run.dir: cannot open", metrics, errno};
  }
  for (std::string line; std::getline(file, line);) {
    // Few of a million records are of a validation or a start.
    if (line.find(R"("valid_loss")") == std::string::npos &&
        line.find(R"("start")") == std::string::npos) {
      continue;
    }
    auto const record = nlohmann::json::parse(line, nullptr, false);
    if (record.is_object()) {
      take(record, all);
    }
  }
  if (file.bad()) {
    throw IoError{"run.dir: cannot read", metrics, errno};
  }
  return all;
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

BestLoss best_after(BestLoss best, std::vector<Validation> const& validations) {
  std::int64_t const last = best.last();
  for (Validation const& validation : validations) {
    if (validation.step > last) {
      best.add(validation);
    }
  }
  return best;
}

}  // namespace offstage::train
