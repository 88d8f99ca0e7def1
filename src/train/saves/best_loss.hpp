#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace offstage::train {

/// One validation of a run.
struct Validation {
  std::int64_t step{};
  double loss{};
};

/// Records of earlier starts of a run.
struct EarlierRecords {
  /// In the file's order. The last one of a step counts. One that is not to count, behind a skipped
  /// step, has no number for its loss.
  std::vector<Validation> validations;
  std::vector<std::int64_t> starts;  ///< the steps after which they began
};

/// Reads a metrics.jsonl; no records if there is no such file. Lines that are no JSON are passed
/// over. Errors: IoError if it cannot be read.
[[nodiscard]] EarlierRecords read_earlier_records(std::string const& metrics);

/// The best validation so far, and the number of those since.
class BestLoss {
 public:
  BestLoss() = default;
  /// A search that goes on from what these functions returned. `best` without a finite loss: any()
  /// was false.
  BestLoss(Validation const& best, std::int64_t since, std::int64_t last)
      : any_{std::isfinite(best.loss)}, best_{best}, since_{since}, last_{last} {}

  /// Adds a validation. Returns true if it is the best: the first, or one with a smaller loss than
  /// all before. A loss that is no number is worse than any.
  bool add(Validation const& validation);
  [[nodiscard]] bool any() const noexcept { return any_; }
  [[nodiscard]] Validation const& best() const noexcept { return best_; }
  /// Number of validations since the best one.
  [[nodiscard]] std::int64_t since() const noexcept { return since_; }
  /// The step of the last one that was added; -1: there was none.
  [[nodiscard]] std::int64_t last() const noexcept { return last_; }

 private:
  bool any_ = false;
  Validation best_;
  std::int64_t since_{};
  std::int64_t last_ = -1;
};

/// `best` with those of the validations that are later than its last one.
[[nodiscard]] BestLoss best_after(BestLoss best, std::vector<Validation> const& validations);

}  // namespace offstage::train
