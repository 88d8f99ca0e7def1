#include "train/run/run_parts.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "base/log.hpp"
#include "checkpoint/extent_file.hpp"
#include "checkpoint/local_directory.hpp"
#include "checkpoint/retention.hpp"
#include "checkpoint/writer.hpp"
#include "parameters/node_memory.hpp"
#include "platform/memory/process_memory.hpp"
#include "train/forecast/attention_room.hpp"
#include "train/forecast/chosen.hpp"
#include "train/memory/device_demand.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/offload/storage.hpp"
#include "train/report/data_lines.hpp"
#include "train/run/open_data.hpp"
#include "train/run/same_data.hpp"
#include "train/saves/checkpoint_space.hpp"
#include "train/saves/save_rate.hpp"
#include "train/settle/run_device.hpp"
#include "train/settle/run_length.hpp"
#include "train/settle/run_rank_link.hpp"
#include "train/settle/schedule_choice.hpp"
#include "train/settle/sharding.hpp"

namespace offstage::train {
namespace {

enum class Use { training, validation };

std::unique_ptr<data::Dataset> open_data_for(Use use, config::RunConfig const& config,
                                             mpi::Communicator const& comm) {
  bool const validates = use == Use::validation;
  return open_data(validates ? config.data.valid : config.data.train,
                   {.key = validates ? "data.valid" : "data.train",
                    .format = config.data.format,
                    .vocab = config.model.vocab,
                    .sequence = config.train.sequence,
                    .rule = config.data.rule,
                    .documents_apart = config.data.documents_apart(),
                    .keys_seen = config.model.window,
                    .separator = config.data.separator,
                    .held_out = {config.data.held_out, validates},
                    .uses_masks = config.data.mask,
                    .verifies_masks = comm.rank() == 0},
                   comm);
}

/// Warns of shortages. The first one with which no run is possible ends this one.
void report(std::vector<launch::Shortage> const& shortages, bool speaks) {
  for (launch::Shortage const& shortage : shortages) {
    if (shortage.ends_with) {
      throw Error{*shortage.ends_with, shortage.text};
    }
    if (speaks) {
      log::warning("{}", shortage.text);
    }
  }
}

/// Looks for shortages of each node, before memory is taken. Collective.
void look_for_shortages(config::RunConfig const& config, mpi::Communicator const& comm,
                        launch::RankPlace const& place, launch::Needs const& needs) {
  auto const node = comm.split_by_node();
  auto const shortages = launch::shortages(node, place, needs);
  mpi::agree(comm, [&] {
    report(shortages, node.rank() == 0);
    require_storage(config);
    if (node.rank() == 0) {
      tidy_storage(config);
    }
  });
}

/// The room before memory is taken, by the least of all ranks. Collective.
Room room_of(config::RunConfig const& config, mpi::Communicator const& comm,
             device::Device const& device, state::RankLink const& link) {
  auto const node = comm.split_by_node();
  auto room = device_room(config, comm, link, device);
  room.ranks_per_node = static_cast<int>(comm.maximum(std::int64_t{node.size()}));
  room.host_memory = config.host_memory;
  if (room.host_memory == 0) {
    Bytes available{};
    mpi::agree(comm, [&] { available = memory::available_bytes(); });
    available = comm.minimum(available);
    room.host_memory = static_cast<Bytes>(auto_host_part * static_cast<double>(available));
  }
  room.shared_memory = leaves_home(config) ? parameters::NodeMemory::room(
                                                 comm, node, config.numerics.element_bytes())
                                           : 0;
  return room;
}

/// Checks the memory of a settled run before any is taken, in the words of `offstage plan`. `given`
/// is the configuration before it was settled.
/// Errors: UsageError.
void require_memory(config::RunConfig const& settled, config::RunConfig const& given,
                    state::ShardMap const& map, Room const& room) {
  auto const plan = host_plan(settled, map, room);
  require_room(device_demand(settled, map, state::fullest_rank, room, plan.subgroup_elements),
               given, room.device_memory);
}

/// Settles checkpoint.rate and checkpoint.files, and finds the storage path on which checkpoint.dir
/// lies. Collective.
template <class T>
void settle_saves(checkpoint::Store& store, config::RunConfig const& config,
                  mpi::Communicator const& comm, StepRunner<T>& runner) {
  auto const paths = runner.paths();
  tiers::StoragePath* path = nullptr;
  mpi::agree(comm, [&] { path = paths ? path_on(*paths, config.checkpoint.dir) : nullptr; });
  store.set_path(path);
  auto const node = comm.split_by_node();
  if (config.checkpoint.has_node_files(comm.size())) {
    store.set_node_files(node, std::ssize(runner.subgroups()));
  }
  if (!holds_versions(config)) {
    return;
  }
  double const share = config.checkpoint.rate_part;
  double const whole = share > 0.0 ? measure_checkpoint_directory(config, comm, node, path) : 0.0;
  store.set_rate(rate_of_rank(config.checkpoint, node.size(), whole));
  if (share > 0.0 && comm.rank() == 0) {
    log::info(
        "checkpoint.rate={:g}%: {} per node and second, of {} that checkpoint.dir takes; of "
        "each path that much at most",
        100.0 * share, format_bytes(static_cast<Bytes>(share * whole)),
        format_bytes(static_cast<Bytes>(whole)));
  }
}

}  // namespace

template <class T>
RunParts<T>::RunParts(config::RunConfig& config, mpi::Communicator const& comm,
                      launch::RankPlace const& place, PlanChoice<T>& plan_choice, Cadence& cadence,
                      Journal& journal)
    : config_{config}, comm_{comm}, place_{place} {
  open_files();
  std::string const link_text = make_runner(plan_choice);
  print_header(link_text);
  open_saves(cadence, journal);
  checkpoint_part_ =
      checkpoint::space_for(config_.optimizer.checkpoint_layout(), runner_->subgroups());
  require_space(config_, comm_, checkpoint_part_);
  if (local_level_) {
    local_level_->require_space(checkpoint_part_, saves_->is_in_local(config_.checkpoint.resume));
  }
}

template <class T>
void RunParts<T>::open_files() {
  bool const leads = comm_.rank() == 0;
  train_data_ = open_data_for(Use::training, config_, comm_);
  if (!config_.data.valid.empty()) {
    valid_data_ = open_data_for(Use::validation, config_, comm_);
  }
  config_.data.attended = train_data_->attended();
  mpi::agree(comm_, [&] { settle_length(config_, train_data_->windows()); });
  settings_ = config_.settings;
  train_files_ = compare_data(*train_data_, "data.train");
  if (valid_data_) {
    valid_files_ = compare_data(*valid_data_, "data.valid");
  }
  // The locks come first, so that a second run on a busy directory takes no memory or space.
  mpi::agree(comm_, [&] {
    if (leads) {
      directories_ = std::make_unique<Directories>(config_);
      checkpoint::remove_old_slots(config_.checkpoint.dir);
      if (std::ranges::any_of(config_.paths, &tiers::PathSettings::persistent)) {
        checkpoint::remove_unfinished(config_.checkpoint.dir);  // it may have slots' room
      }
    }
  });
  require_same_directory();
  if (!config_.checkpoint.local.empty()) {
    local_level_ = std::make_unique<LocalLevel>(config_, comm_);
  }
}

template <class T>
void RunParts<T>::require_same_directory() {
  auto const line = comm_.broadcast(directories_ ? directories_->line() : std::string{}, 0);
  bool const is_first = comm_.split_by_node().rank() == 0;
  mpi::agree(comm_, [&] {
    if (is_first && comm_.rank() != 0 && !line.empty()) {
      RunLock::require_line(line, config_.checkpoint.dir, "checkpoint.dir");
    }
  });
}

template <class T>
std::vector<data::FileFacts> RunParts<T>::compare_data(data::Dataset const& data, char const* key) {
  auto files = files_of(data, comm_);
  require_same_data(key, files, comm_);
  settings_.push_back(contents_of(key, files));
  return files;
}

template <class T>
std::string RunParts<T>::make_runner(PlanChoice<T>& plan_choice) {
  auto device = make_run_device(config_.device, place_.placement, comm_);
  auto const for_link = device->kind() == device::Kind::cuda && comm_.size() > 1
                            ? rank_link_needs(config_, comm_.size())
                            : RankLinkNeeds{};
  auto link =
      make_run_rank_link(config_.comm_backend, comm_, *device, place_.placement.gpu, for_link);
  std::optional<state::ShardMap> map;
  mpi::agree(comm_, [&] { map.emplace(state::layers_of(config_.model), comm_.size()); });
  auto const room = room_of(config_, comm_, *device, *link.link);
  attention_ = make_run_attention(config_, comm_, *device, [&](Bytes workspace) {
    return has_attention_room(config_, *map, room, workspace);
  });
  config_.device.attention_workspace = attention_.plans ? attention_.plans->workspace() : 0;
  auto const given = config_;
  if (config_.plan.choose) {
    chosen_why_ = plan_choice.choose(*device, *link.link, *map, room);
  }
  activations_why_ = settle_for_all(config_, *map, comm_, room, *device);
  mpi::agree(comm_, [&] { require_memory(config_, given, *map, room); });
  runner_ = std::make_unique<StepRunner<T>>(
      config_, comm_, std::move(device), std::move(link.link),
      [this](launch::Needs const& needs) { look_for_shortages(config_, comm_, place_, needs); },
      attention_.plans.get());
  return link.text;
}

template <class T>
void RunParts<T>::print_header(std::string const& link) {
  std::vector<std::string> data;
  mpi::agree(comm_, [&] {
    if (comm_.rank() == 0) {
      data = describe_data(*train_data_, train_files_, valid_data_.get(), valid_files_, config_);
    }
  });
  train_files_ = decltype(train_files_){};
  valid_files_ = decltype(valid_files_){};
  if (auto const idle = warning_of_idle_ranks(config_, comm_.size());
      comm_.rank() == 0 && !idle.empty()) {
    log::warning("{}", idle);
  }
  header_ = make_header(config_,
                        {.place = place_,
                         .nodes = runner_->nodes(),
                         .parameters = state::count_parameters(runner_->map().layers()),
                         .device = runner_->device().name(),
                         .libraries = runner_->device().libraries(),
                         .attention = attention_.text,
                         .chosen = chosen_why_,
                         .activations = activations_why_,
                         .link = link,
                         .memory = runner_->memory_plan(),
                         .layer_slots = runner_->layer_slots(),
                         .large_layer_slot = runner_->map().layer_slot_sizes().large > 0,
                         .host_memory_limit = runner_->room().host_memory,
                         .subgroups = static_cast<std::int64_t>(runner_->subgroups().size()),
                         .paths = runner_->path_facts(),
                         .memory_table = runner_->memory_table(),
                         .data = std::move(data)},
                        comm_);
  for (std::string const& line : config_.full_header ? header_.full : header_.brief) {
    log::info("{}", line);
  }
}

template <class T>
void RunParts<T>::keep_local_level(std::int64_t step) {
  mpi::agree(comm_, [&] {
    if (local_level_) {
      local_level_->keep(step);
    } else if (comm_.rank() == 0) {
      checkpoint::forget_local_directory(config_.checkpoint.dir);
    }
  });
}

template <class T>
void RunParts<T>::open_saves(Cadence& cadence, Journal& journal) {
  saves_.emplace(
      std::make_unique<checkpoint::Store>(
          config_.checkpoint.dir,
          checkpoint::Retention{config_.checkpoint.keep, config_.checkpoint.keep_every}, comm_),
      local_level_ ? local_level_->make_store() : nullptr, comm_, cadence, journal);
  std::string const& first = config_.checkpoint.first_resume;
  if (!first.empty() && first != "none") {
    saves_->spare(first);
  }
  if (auto const split = runner_->split_parameters()) {
    saves_->set_split(*split);
  }
  saves_->set_trace(runner_->trace());
  settle_saves(saves_->store(), config_, comm_, *runner_);
  runner_->set_before_update([this] { return saves_->finish_if_written(); });
  if (config_.checkpoint.partner) {
    runner_->set_before_layer([this] { saves_->look_in(); });
  }
}

template <class T>
std::string RunParts<T>::libraries() const {
  std::string const& attention = attention_.libraries;
  auto const device = runner_->device().libraries();
  bool const both = !device.empty() && !attention.empty();
  return device + (both ? ", " : "") + attention;
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_RUN_TYPES, RunParts)

}  // namespace offstage::train
