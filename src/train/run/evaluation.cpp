#include "train/run/evaluation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "convert/convert.hpp"
#include "convert/parameter_tiers.hpp"
#include "model/transformer.hpp"
#include "parameters/working_parameters.hpp"
#include "state/shard.hpp"
#include "train/run/open_data.hpp"
#include "train/run/same_data.hpp"
#include "train/settle/run_device.hpp"
#include "train/settle/run_rank_link.hpp"

namespace offstage::train {
namespace {

/// Elements that are read at a time: 16 MiB of FP32.
constexpr std::int64_t subgroup_elements = 4 * MiB;

template <class T>
void fill(parameters::WorkingParameters<T>& copy, state::ShardMap const& map, int rank,
          state::ParameterReader& reader) {
  auto const subgroups = state::subgroups_of(map, rank, subgroup_elements);
  std::vector<float> buffer;
  for (state::Subgroup const& subgroup : subgroups) {
    buffer.resize(static_cast<std::size_t>(subgroup.size));
    convert::read_pieces(reader, subgroup, buffer);
    copy.fill(subgroup, buffer);
  }
}

/// The objects of a rank while it evaluates.
template <class T>
class Evaluator {
 public:
  /// `run` has no fates.
  Evaluator(model::RunShape run, config::DeviceConfig const& device, state::ParameterReader& reader,
            launch::Placement const& place, mpi::Communicator const& comm)
      : device_{make_run_device(device, place, comm)},
        link_{make_run_rank_link(config::CommBackend::automatic, comm, *device_, place.gpu)},
        stream_{device_->make_calling_stream("compute")},
        map_{state::layers_of(reader.shape()), comm.size()} {
    mpi::agree(comm, [&] {
      copy_.emplace(map_, *link_.link, *device_, *stream_);
      fill(*copy_, map_, comm.rank(), reader);
      // Backward is never run. With these fates its tensors take least memory.
      std::vector<model::BlockFates> const fates(static_cast<std::size_t>(reader.shape().layers),
                                                 model::recomputed_block);
      run.fates = fates;
      model_.emplace(reader.shape(), run, *device_, *stream_);
    });
  }
  ~Evaluator() { link_.link->end(); }
  Evaluator(Evaluator const&) = delete;
  Evaluator& operator=(Evaluator const&) = delete;

  [[nodiscard]] LossCalls calls() {
    return {.evaluate =
                [this](data::TokenBatch const& batch) { return model_->evaluate(batch, *copy_); },
            .idle = [this] { model_->idle_forward(*copy_); },
            .expect = [] {}};
  }

 private:
  std::unique_ptr<device::Device> device_;
  RunRankLink link_;
  std::unique_ptr<device::Stream> stream_;
  state::ShardMap map_;
  std::optional<parameters::DeviceParameters<T>> copy_;
  std::optional<model::Transformer<T>> model_;
};

/// The number of sequences that a rank takes at once; not more than there are windows.
std::int64_t micro_batch_of(EvaluationTask const& task, Evaluation const& known) {
  auto const wanted = task.micro_batch > 0
                          ? task.micro_batch
                          : std::max<std::int64_t>(1, usual_micro_tokens / known.sequence);
  return std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(1, known.windows));
}

template <class T>
Evaluation evaluate_as(EvaluationTask const& task, launch::Placement const& place,
                       mpi::Communicator const& comm) {
  auto const from = convert::resolve_parameters(task.from, "--from", comm);
  std::unique_ptr<state::ParameterReader> reader;
  auto options = task.options;
  Evaluation result;
  result.from = from;
  mpi::agree(comm, [&] {
    reader = convert::open_parameters(from, "--from");
    auto const& shape = reader->shape();
    options.vocab = shape.vocab;
    options.keys_seen = shape.window;
    options.verifies_masks = comm.rank() == 0;
    if (options.sequence == 0) {
      options.sequence = std::min(shape.max_sequence, usual_sequence);
    }
    if (options.sequence > shape.max_sequence) {
      throw UsageError{
          fmt::format("--sequence={} is more than the model of --from={} is made for, {}",
                      options.sequence, task.from, shape.max_sequence)};
    }
  });
  auto const data = open_data(task.data, options, comm);
  result.files = files_of(*data, comm);
  result.short_files = data->short_files();
  require_same_data(task.options.key, result.files, comm);
  result.sequence = data->sequence();
  std::int64_t const sources = std::ssize(data->sources());
  result.windows = task.most_windows > 0
                       ? std::min(std::max(task.most_windows, sources), data->windows())
                       : data->windows();
  result.micro_batch = micro_batch_of(task, result);
  mpi::agree(comm, [&] {
    if (comm.rank() == 0) {
      require_target(*data, result.windows,
                     fmt::format("{}={}", task.options.key, task.data.front().path));
    }
  });
  Evaluator<T> evaluator{{.batch = result.micro_batch,
                          .sequence = result.sequence,
                          .documents_apart = data->marks_documents()},
                         task.device,
                         *reader,
                         place,
                         comm};
  result.mean =
      mean_loss(comm, *data, result.windows, result.micro_batch, evaluator.calls()).value();
  mpi::agree(comm, [&] {
    if (!std::isfinite(result.mean.all.loss)) {
      throw DataError{fmt::format(
          "--from={}: the loss is {}, no finite number: parameters are not finite, or what they "
          "compute is beyond the range of {}",
          task.from, result.mean.all.loss, name_of(task.dtype))};
    }
  });
  return result;
}

}  // namespace

Evaluation evaluate(EvaluationTask const& task, mpi::Communicator const& comm) {
  config::RunConfig config;
  config.device = task.device;
  config.threads = task.threads;
  auto const place = take_run_place(config, comm);
  return with_type(task.dtype,
                   [&]<class T>(T) { return evaluate_as<T>(task, place.placement, comm); });
}

}  // namespace offstage::train
