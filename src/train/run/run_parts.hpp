#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "data/dataset.hpp"
#include "launch/launcher.hpp"
#include "platform/mpi/communicator.hpp"
#include "train/files/directories.hpp"
#include "train/report/header.hpp"
#include "train/report/journal.hpp"
#include "train/run/plan_choice.hpp"
#include "train/saves/cadence.hpp"
#include "train/saves/local_level.hpp"
#include "train/saves/saves.hpp"
#include "train/settle/run_attention.hpp"
#include "train/step/step_runner.hpp"

namespace offstage::train {

/// Parts of which a run is made. T is numerics.dtype.
///
/// Construction opens data, takes the locks, finds device and link, settles keys that are `auto`,
/// plans memory and takes it, prints the header and opens the stores of checkpoints. Errors that a
/// user can mend are found there, and leave nothing behind. The state is not filled yet.
///
/// Lifetime:   members end in the reverse of their order: each may use those before it.
/// Collective: construction. Errors there: mpi::AgreedError.
template <class T>
class RunParts {
 public:
  /// The run is on the rank's GPU if its place has one. Settings that device and ranks decide are
  /// written to `config` before memory is taken by them. All arguments outlive it.
  RunParts(config::RunConfig& config, mpi::Communicator const& comm, launch::RankPlace const& place,
           PlanChoice<T>& plan_choice, Cadence& cadence, Journal& journal);
  ~RunParts() = default;
  RunParts(RunParts const&) = delete;
  RunParts& operator=(RunParts const&) = delete;

  /// Data of validations; null without any.
  [[nodiscard]] data::Dataset* valid_data() const noexcept { return valid_data_.get(); }
  [[nodiscard]] data::Dataset const& train_data() const noexcept { return *train_data_; }
  /// The run's settings, and what is in its data files (contents_of).
  [[nodiscard]] std::vector<config::Setting> const& settings() const noexcept { return settings_; }
  /// Directories of the run, on rank 0.
  [[nodiscard]] Directories& directories() const noexcept { return *directories_; }
  /// Makes level 1 this start's, which goes on behind `step`; call it before its first step. Where
  /// there is none, what an earlier start left there is nobody's from then on. Collective.
  /// Errors: mpi::AgreedError.
  void keep_local_level(std::int64_t step);
  [[nodiscard]] Header const& header() const noexcept { return header_; }
  /// Versions of libraries on which the bits of device and attention depend.
  [[nodiscard]] std::string libraries() const;
  [[nodiscard]] StepRunner<T>& runner() const noexcept { return *runner_; }
  [[nodiscard]] Saves& saves() noexcept { return *saves_; }
  /// State that is saved and restored.
  [[nodiscard]] Saves::State state() const {
    return {runner_->map(), runner_->subgroups(), runner_->tiers()};
  }
  /// Bytes of this rank's part of a checkpoint.
  [[nodiscard]] Bytes checkpoint_part() const noexcept { return checkpoint_part_; }

 private:
  void open_files();
  /// Ends a start where a node has another checkpoint.dir than rank 0's, before any work is done.
  void require_same_directory();
  /// Compares the files with those of other ranks, and adds their contents to the settings. Returns
  /// them: their samples are read once.
  [[nodiscard]] std::vector<data::FileFacts> compare_data(data::Dataset const& data,
                                                          char const* key);
  /// Returns the way of layers from rank to rank, in words.
  [[nodiscard]] std::string make_runner(PlanChoice<T>& plan_choice);
  void print_header(std::string const& link);
  /// Opens the stores of checkpoints, and tells the runner which saves go on beside its work.
  void open_saves(Cadence& cadence, Journal& journal);

  config::RunConfig& config_;
  mpi::Communicator const& comm_;
  launch::RankPlace const& place_;
  std::unique_ptr<data::Dataset> train_data_;
  std::unique_ptr<data::Dataset> valid_data_;
  std::vector<data::FileFacts> train_files_, valid_files_;  ///< until the header is printed
  std::vector<config::Setting> settings_;
  std::unique_ptr<Directories> directories_;  ///< the runner's slots are in them
  std::unique_ptr<LocalLevel> local_level_;
  std::string activations_why_;          ///< for the header
  std::vector<std::string> chosen_why_;  ///< for the header, on rank 0
  Header header_;
  RunAttention attention_;  ///< the runner's model has its plans
  std::unique_ptr<StepRunner<T>> runner_;
  Bytes checkpoint_part_{};
  std::optional<Saves> saves_;  ///< reads the runner's state
};

}  // namespace offstage::train
