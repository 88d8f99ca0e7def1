#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "activations/policy.hpp"
#include "base/dtype.hpp"
#include "base/state_layout.hpp"
#include "base/units.hpp"
#include "data/mixture.hpp"
#include "data/token_file.hpp"
#include "data/window_packing.hpp"
#include "device/device.hpp"
#include "kernels/optimizer/optimizer.hpp"
#include "parameters/home.hpp"
#include "plan/extent_cache.hpp"
#include "plan/order.hpp"
#include "plan/share.hpp"
#include "plan/split.hpp"
#include "plan/waiting_slabs.hpp"
#include "platform/slurm/job.hpp"
#include "state/model_shape.hpp"
#include "tiers/path_settings.hpp"
#include "tiers/verify.hpp"

namespace offstage::config {

/// The value of a key that is on or off, or leaves that to the run.
enum class Switch { automatic, on, off };

enum class RateSchedule { constant, linear, cosine, wsd, cooldown, inverse_sqrt };
[[nodiscard]] char const* name_of(RateSchedule schedule);

/// A key with the value in force and its origin: "default", "--train.steps=50", "a.cfg:12". A
/// repeatable key (tiers.path) has one Setting for each value.
struct Setting {
  std::string key;
  std::string value;
  std::string origin;
  bool derived = false;  ///< a default that follows from other keys

  [[nodiscard]] bool is_default() const { return origin == "default"; }
};

/// End of the origin of a value that was given and is the default.
constexpr char const* as_default_mark = " (default)";
/// Returns whether the value is the default, given or not.
[[nodiscard]] bool is_usual(Setting const& setting);
/// Returns whether somebody gave the key a value, be it the default.
[[nodiscard]] bool is_given(std::vector<Setting> const& settings, std::string_view key);

/// data.skip: sequences of the order of training data that are left out behind a step.
struct Skip {
  std::int64_t step{};
  std::int64_t sequences{};
};

/// Sequences that are left out before the step behind `step`.
[[nodiscard]] std::int64_t skipped(std::vector<Skip> const& skips, std::int64_t step);

struct DataConfig {
  std::vector<data::Source> train;  ///< data.train
  /// data.valid; empty: no validation. Those of `train` if `held_out` is not 0.
  std::vector<data::Source> valid;
  double held_out = 0.0;    ///< data.valid=N%: part of every file of data.train, at its end
  std::vector<Skip> skips;  ///< data.skip, by ascending steps
  data::Format format{};
  data::WindowRule rule{};                ///< data.cross-documents
  std::optional<std::int32_t> separator;  ///< data.separator
  bool mask = true;                       ///< data.mask
  bool attention_by_document{};           ///< data.attention=document
  /// Share of attention's pairs that the documents of data.train leave (data::Dataset). It is no
  /// key: a run settles it when it has opened the files.
  double attended = 1.0;

  /// Returns whether windows have several documents that do not see each other.
  [[nodiscard]] bool documents_apart() const {
    return attention_by_document && rule != data::WindowRule::apart;
  }
};

/// train.schedule: whether a micro-batch passes all layers before the next one comes, or a layer
/// all micro-batches of this rank before the next layer. No bit depends on it.
enum class LayerSchedule { horizontal, vertical, automatic };

struct TrainConfig {
  /// Total, counted from the first start. A length in epochs leaves it 0 until data.train is open
  /// (train::settle_length).
  std::int64_t steps{};
  double epochs{};              ///< train.steps=3epochs; 0: the length is given in steps
  std::int64_t sequence{};      ///< T
  std::int64_t micro_batch{};   ///< B, sequences
  std::int64_t global_batch{};  ///< sequences per step, a multiple of micro_batch
  std::uint64_t seed{};
  double z_loss{};        ///< train.z-loss: weight of the auxiliary loss
  std::string init_from;  ///< first weights: a Hugging Face directory or a checkpoint; empty: seed
  Seconds max_time{};     ///< 0: no limit
  Seconds time_margin{};  ///< time between the end of the last save and that of the job
  std::int64_t max_bad_steps{};
  activations::Policy activations;
  LayerSchedule schedule = LayerSchedule::horizontal;
  /// Micro-batches of a rank in a step that pass the layers together; 0: none do. It is no key: a
  /// run, and a forecast, settles it by `schedule` before it takes memory (schedule_choice.hpp).
  int together{};
  /// Tensors of a vertical schedule that wait on the device although others leave it. This is no
  /// key: it is settled behind all else that takes device memory (schedule_choice.hpp).
  plan::StayingTensors staying{};
  std::int64_t valid_every{};    ///< steps between validations; 0: at the end alone
  std::int64_t valid_batches{};  ///< most micro-batches of windows per validation; 0: all
  bool valid_first{};            ///< train.valid-first: before the first step, too
  std::int64_t patience{};   ///< train.patience: validations that may be no better; 0: any number
  std::int64_t log_every{};  ///< steps between log lines
};

struct OptimizerConfig {
  kernels::Optimizer kind = kernels::Optimizer::adamw;
  kernels::Moments moments = kernels::Moments::fp32;
  double momentum{};  ///< momentum of rmsprop and sgd
  double lr{};
  double beta1{};
  double beta2{};
  double eps{};
  double weight_decay{};
  double clip{};  ///< global norm limit; 0: none
  RateSchedule schedule{};
  std::int64_t schedule_begin{};  ///< step from which the schedule is counted
  std::int64_t warmup_steps{};
  double min_lr{};
  double decay_fraction{};     ///< wsd, cooldown: part of the steps in which the rate falls
  std::int64_t decay_steps{};  ///< the same in steps; 0: by decay_fraction

  /// The state has only the lower halves of parameters. It is no key: a run, and a forecast,
  /// settles it by tiers.split-parameters before it takes memory (split_parameters.hpp).
  bool split_parameter{};

  /// The planes of the state. Errors: UsageError as kernels::state_layout.
  [[nodiscard]] StateLayout layout() const {
    return kernels::state_layout(kind, moments, momentum > 0.0, split_parameter);
  }
  /// Planes of a checkpoint, which holds whole parameters.
  [[nodiscard]] StateLayout checkpoint_layout() const {
    return kernels::state_layout(kind, moments, momentum > 0.0);
  }
};

/// The state in words: "10 bytes per parameter (adamw, moments in fp32, parameters split)".
[[nodiscard]] std::string describe_state(OptimizerConfig const& optimizer);

/// The keys numerics.loss-scale, -start and -window.
struct LossScaleRules {
  bool dynamic = true;
  double start = 65'536.0;      ///< a power of two, so that scaling and its inverse are exact
  std::int64_t window = 2'000;  ///< steps without overflow after which the scale doubles
};

struct NumericsConfig {
  DType dtype{};  ///< type of working copy, activations and gradients
  [[nodiscard]] Bytes element_bytes() const { return bytes_of(dtype); }
  bool accumulate_fp32{};
  std::int64_t sum_block = 1;  ///< numerics.sum-block
  LossScaleRules loss_scale;   ///< rules for fp16
};

enum class CheckpointFiles { automatic, rank, node };  ///< checkpoint.files

/// The time between saves: steps, a duration, or neither.
struct Interval {
  std::int64_t steps{};  ///< 0: not by steps
  Seconds time{};        ///< 0: not by time
  bool automatic{};      ///< by the cost of a save

  [[nodiscard]] bool operator==(Interval const&) const = default;
};

struct CheckpointConfig {
  std::string dir;  ///< default: run.dir/checkpoints
  Interval every;   ///< checkpoint.every
  Seconds mtbf{};   ///< the whole job's, for checkpoint.every=auto
  int keep{};
  bool keep_best{};  ///< checkpoint.keep-best
  /// Checkpoints of steps that are multiples of this are saved and stay; 0: none.
  std::int64_t keep_every{};
  std::string resume;  ///< "auto", "none" or a path
  /// `resume` before plan.choose began anew; "": it has not, or `resume` was "auto" then.
  std::string first_resume;
  bool overlap = true;  ///< checkpoint.overlap: saves go on under the next step
  double rate{};  ///< checkpoint.rate: bytes per second of a node, beside later steps too; 0: none
  /// checkpoint.rate=20%: part of the rates of checkpoint.dir and the paths; 0: none.
  double rate_part{};
  std::string local;     ///< checkpoint.local: a directory on each node; empty: no level 1
  Interval local_every;  ///< checkpoint.local-every
  Seconds node_mtbf{4320.0 * 3600};  ///< one node's, for checkpoint.every=auto beside level 1
  bool partner = false;              ///< checkpoint.partner=copy: level 3
  /// Directory of this run's level 1; empty: there is none, or it is not known yet.
  std::string level_1;
  int nodes = 1;  ///< number of nodes of a run with level 1

  CheckpointFiles files = CheckpointFiles::automatic;

  /// Returns whether the ranks of a node write one file.
  [[nodiscard]] bool has_node_files(int ranks) const {
    constexpr int fewest_ranks = 256;
    return files == CheckpointFiles::node ||
           (files == CheckpointFiles::automatic && ranks >= fewest_ranks);
  }
  /// Returns whether saves go on beside later steps.
  [[nodiscard]] bool is_paced() const { return rate > 0.0 || rate_part > 0.0; }
  /// Returns whether a run saves before its end.
  [[nodiscard]] bool saves_on_the_way() const { return every != Interval{} || keep_every > 0; }
};

/// The use of the storage paths: the principles of MLP-Offload, each with a key of its own.
struct StoragePolicy {
  /// tiers.exclusive: the processes of a node take turns on a storage path. automatic: they do on
  /// paths where turns are no slower.
  Switch exclusive = Switch::automatic;
  plan::SplitPolicy split;                                 ///< tiers.split
  tiers::Verify verify = tiers::Verify::always;            ///< tiers.verify
  Bytes most_cache = -1;                                   ///< tiers.cache, per node; -1: auto
  plan::Evict evict = plan::Evict::farthest;               ///< tiers.evict
  plan::UpdateOrder order = plan::UpdateOrder::alternate;  ///< update.order
  bool flush_fp32 = false;                                 ///< update.gradients=flush-fp32
  Switch split_parameters = Switch::automatic;             ///< tiers.split-parameters
};

enum class CommBackend { automatic, mpi, nccl };  ///< comm.backend

enum class Attention { automatic, cudnn, own };  ///< device.attention

enum class DeviceKind { automatic, host, cuda };  ///< device.kind

struct DeviceConfig {
  DeviceKind kind = DeviceKind::automatic;  ///< automatic: cuda if each rank has a GPU, else host
  Bytes memory{};                           ///< device.memory; 0: no limit
  device::Emulation emulation;              ///< device.emulate, for kind host alone
  bool share_gpu{};  ///< device.share-gpu: several ranks may compute on one GPU
  device::Check check = device::Check::off;    ///< device.check, for kind cuda alone
  Attention attention = Attention::automatic;  ///< device.attention, for kind cuda alone
  /// Memory for backward of attention by cuDNN; 0: Offstage's own kernels compute it. It is no key:
  /// a run settles it before it takes memory, and a forecast assumes it.
  Bytes attention_workspace{};
};

/// The division of the update between CPU and device: the principles of Deep Optimizer States.
struct SharePolicy {
  std::optional<double> device_share;     ///< update.device-share; none: auto
  double device_resident{};               ///< update.device-resident, part of the shard in [0, 1]
  bool resident_is_open = false;          ///< update.device-resident=auto: left to the plan
  std::int64_t device_chunk{};            ///< update.device-chunk, parameters
  std::optional<Bytes> device_gradients;  ///< update.device-gradients, per rank; none: auto
  plan::Transfers transfers = plan::Transfers::overlap;  ///< update.transfers=overlap|blocking
};

/// plan.*: decisions by predictions of steps.
struct PlanConfig {
  bool choose = false;  ///< plan.choose: keys that are `auto` are decided together
  /// plan.clip-rate: part of the steps whose norm is above optimizer.clip, in [0, 1].
  double clip_rate{};
};

/// The rest of platform.*, as `offstage probe` wrote it: per rank, measured on all ranks at once; 0
/// if not given.
struct PassRates {
  double block_forward{}, block_backward{};  ///< FLOP/s of a block on the device
  double host_sum{};   ///< bytes per second that the cores read and write to add gradients
  double rank_link{};  ///< bytes per second that come to a rank from the others
};

/// The configuration of a training run. The room cli makes it from files and options; afterwards it
/// is read-only.
struct RunConfig {
  std::string commit;  ///< commit of the program's sources, for checkpoints and records
  std::string run_dir;
  int threads{};       ///< per rank; 0: this rank's part of the allowed cores
  Seconds watchdog{};  ///< run.watchdog; 0: none
  state::ModelShape model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  NumericsConfig numerics;
  bool full_header{};                          ///< run.header=full
  Switch wanted_progress = Switch::automatic;  ///< run.progress
  bool progress{};                             ///< settled: rank 0's terminal shows a progress line
  bool colours{};                              ///< the progress line has colours
  bool trace{};                                ///< run.trace
  bool tensorboard{};                          ///< run.tensorboard
  bool allow_foreign{};                        ///< run.allow-foreign
  std::vector<tiers::PathSettings> paths;  ///< tiers.path; empty: the state lives in host memory
  StoragePolicy storage;
  /// Returns whether gradients are flushed to storage, which takes a path.
  [[nodiscard]] bool flushes_fp32() const { return storage.flush_fp32 && !paths.empty(); }
  bool allow_tmpfs{};            ///< tiers.allow-tmpfs
  Bytes host_memory{};           ///< tiers.host-memory, per node; 0: auto
  std::int64_t subgroup_size{};  ///< update.subgroup-size, parameters
  bool subgroup_is_default{};
  bool subgroup_is_open{};  ///< the plan may choose smaller ones
  DeviceConfig device;
  CommBackend comm_backend = CommBackend::automatic;
  SharePolicy share;
  Switch overlap = Switch::automatic;                          ///< update.overlap
  parameters::Home parameter_home = parameters::Home::device;  ///< parameters.home
  bool home_is_open = false;  ///< parameters.home=auto: left to the plan
  parameters::Sharding sharding = parameters::Sharding::zero3;  ///< parameters.sharding
  bool sharding_is_open = false;  ///< parameters.sharding=auto: it depends on the room in memory
  PlanConfig plan;
  /// platform.*, as `offstage probe` wrote them: per rank, measured on all ranks at once; 0 if not
  /// given.
  plan::UpdateRates platform;
  double platform_products{};  ///< platform.products, FLOP/s; 0: not given
  PassRates platform_passes;
  /// platform.measured: time and place of the measurement, in words.
  std::string platform_measured;
  CheckpointConfig checkpoint;
  std::optional<slurm::Job> job;  ///< none outside of Slurm; its end is known to rank 0 alone
  std::string node;               ///< this rank's node, as Slurm names it; empty: its host name
  std::vector<Setting> settings;  ///< all keys, sorted by key, for the header and the checkpoint
  /// Returns whether train.steps is a number that is given: `plan` does without, or takes epochs.
  [[nodiscard]] bool steps_are_given() const {
    return is_given(settings, "train.steps") && train.epochs == 0.0;
  }
};

/// Checks values that depend on each other.
/// Errors: UsageError naming the keys, their values and what would be right: divisibility of
///         batches and heads, ranges, sequence within max-sequence, keep at least 2, warm-up within
///         steps, one weight of tiers.split per tiers.path, no directory twice among these, a path
///         for parameters on storage, an emulation with the host device only, no key set that has
///         no effect (unused_keys), moments that can be made smaller, parameters that can be split,
///         a separator within the vocabulary.
void validate(RunConfig const& config);

/// A key that has no effect, as other keys are set.
struct UnusedKey {
  std::string_view key;
  std::string reason;  ///< "with optimizer.kind=sgd"
  /// A default that is written out is a wish, too: optimizer.beta1=0.9 with sgd means a momentum.
  bool even_as_default = false;
};
/// The keys that have no effect in this configuration.
[[nodiscard]] std::vector<UnusedKey> unused_keys(RunConfig const& config);

/// Checks the keys of the device alone: an emulation is for the host device only.
void validate(DeviceConfig const& device);

}  // namespace offstage::config
