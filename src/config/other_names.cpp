#include "config/other_names.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace offstage::config {
namespace {

/// Each tool's word, and the key.
constexpr auto names = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"learning-rate", "optimizer.lr"},
    {"max-lr", "optimizer.lr"},
    {"adam-beta1", "optimizer.beta1"},
    {"adam-beta2", "optimizer.beta2"},
    {"adam-epsilon", "optimizer.eps"},
    {"adam-eps", "optimizer.eps"},
    {"clip-grad", "optimizer.clip"},
    {"grad-clip", "optimizer.clip"},
    {"gradient-clipping", "optimizer.clip"},
    {"max-grad-norm", "optimizer.clip"},
    {"lr-wsd-decay-iters", "optimizer.decay-steps"},
    {"lr-decay-style", "optimizer.schedule"},
    {"lr-scheduler-type", "optimizer.schedule"},
    {"lr-scheduler", "optimizer.schedule"},
    {"lr-warmup-iters", "optimizer.warmup-steps"},
    {"lr-warmup-steps", "optimizer.warmup-steps"},
    {"num-warmup-steps", "optimizer.warmup-steps"},
    {"warmup", "optimizer.warmup-steps"},
    {"warmup-iters", "optimizer.warmup-steps"},
    {"optim", "optimizer.kind"},
    {"eval-interval", "train.valid-every"},
    {"eval-steps", "train.valid-every"},
    {"logging-steps", "train.log-every"},
    {"log-interval", "train.log-every"},
    {"early-stopping-patience", "train.patience"},
    {"max-iters", "train.steps"},
    {"max-steps", "train.steps"},
    {"epochs", "train.steps"},
    {"max-epochs", "train.steps"},
    {"num-epochs", "train.steps"},
    {"num-train-epochs", "train.steps"},
    {"train-iters", "train.steps"},
    {"local-batch-size", "train.micro-batch"},
    {"micro-batch-size", "train.micro-batch"},
    {"per-device-train-batch-size", "train.micro-batch"},
    {"train-micro-batch-size-per-gpu", "train.micro-batch"},
    {"global-batch-size", "train.global-batch"},
    {"train-batch-size", "train.global-batch"},
    {"block-size", "train.sequence"},
    {"max-seq-length", "train.sequence"},
    {"seq-len", "train.sequence"},
    {"seq-length", "train.sequence"},
    {"sequence-length", "train.sequence"},
    {"sequence-len", "train.sequence"},
    {"max-seq-len", "train.sequence"},
    {"split", "data.valid"},
    {"test-size", "data.valid"},
    {"val-size", "data.valid"},
    {"val-set-size", "data.valid"},
    {"softmax-auxiliary-loss", "train.z-loss"},
    {"z-loss-multiplier", "train.z-loss"},
    {"z-loss-weight", "train.z-loss"},
    {"finetune", "train.init-from"},
    {"model-name-or-path", "train.init-from"},
    {"base-model", "train.init-from"},
    {"gradient-checkpointing", "train.activations"},
    {"recompute-activations", "train.activations"},
    {"recompute-granularity", "train.activations"},
    {"model-type", "model.family"},
    {"n-layer", "model.layers"},
    {"num-hidden-layers", "model.layers"},
    {"num-layers", "model.layers"},
    {"hidden-size", "model.hidden"},
    {"n-embd", "model.hidden"},
    {"n-head", "model.heads"},
    {"num-attention-heads", "model.heads"},
    {"num-key-value-heads", "model.kv-heads"},
    {"num-query-groups", "model.kv-heads"},
    {"kv-channels", "model.head-dim"},
    {"ffn-hidden-size", "model.ffn-hidden"},
    {"intermediate-size", "model.ffn-hidden"},
    {"vocab-size", "model.vocab"},
    {"max-position-embeddings", "model.max-sequence"},
    {"n-positions", "model.max-sequence"},
    {"tie-word-embeddings", "model.tied-head"},
    {"rotary-base", "model.rope-theta"},
    {"sliding-window", "model.window"},
    {"layernorm-epsilon", "model.norm-eps"},
    {"rms-norm-eps", "model.norm-eps"},
    {"bf16", "numerics.dtype"},
    {"fp16", "numerics.dtype"},
    {"mixed-precision", "numerics.dtype"},
    {"precision", "numerics.dtype"},
    {"torch-dtype", "numerics.dtype"},
    {"device", "device.kind"},
    {"attn-implementation", "device.attention"},
    {"use-flash-attn", "device.attention"},
    {"initial-loss-scale", "numerics.loss-scale-start"},
    {"data-path", "data.train"},
    {"data.path", "data.train"},
    {"train-data-path", "data.train"},
    {"train-file", "data.train"},
    {"valid-data-path", "data.valid"},
    {"validation-file", "data.valid"},
    {"load", "checkpoint.resume"},
    {"resume-from-checkpoint", "checkpoint.resume"},
    {"save", "checkpoint.dir"},
    {"save-interval", "checkpoint.every"},
    {"save-steps", "checkpoint.every"},
    {"save-total-limit", "checkpoint.keep"},
    {"log-dir", "run.dir"},
    {"out-dir", "run.dir"},
    {"output-dir", "run.dir"},
    {"tensorboard-dir", "run.tensorboard"},
    {"nvme-path", "tiers.path"},
    {"offload-dir", "tiers.path"},
    {"sub-group-size", "update.subgroup-size"},
    {"zero-optimization.stage", "parameters.sharding"},
    {"offload-param.device", "parameters.home"},
    {"offload-optimizer.ratio", "update.device-resident"},
    {"tensorboard.enabled", "run.tensorboard"},
    {"optimizer", "optimizer.kind"},
    {"bf16.enabled", "numerics.dtype"},
    {"fp16.enabled", "numerics.dtype"},
    {"optimizer.type", "optimizer.kind"},
    {"scheduler.type", "optimizer.schedule"},
    {"lr-wsd-decay-style", "optimizer.schedule"},
    {"warmup-num-steps", "optimizer.warmup-steps"},
    {"total-num-steps", "train.steps"},
    {"train-samples", "train.steps"},
    {"exit-duration-in-mins", "train.max-time"},
    {"activation-checkpointing", "train.activations"},
    {"cpu-checkpointing", "train.activations"},
    {"no-load-optim", "train.init-from"},
    {"max-length", "train.sequence"},
    {"packing", "data.cross-documents"},
    {"sample-packing", "data.cross-documents"},
    {"load-best-model-at-end", "checkpoint.keep-best"},
    {"swiglu", "model.family"},
    {"qk-layernorm", "model.qk-norm"},
    {"add-qkv-bias", "model.qkv-bias"},
    {"untie-embeddings-and-output-weights", "model.tied-head"},
    {"warmup-max-lr", "optimizer.lr"},
    {"max-norm", "optimizer.clip"},
    {"optimizer.name", "optimizer.kind"},
    {"scheduler", "optimizer.schedule"},
    {"lr-scheduler.type", "optimizer.schedule"},
    {"decay-type", "optimizer.schedule"},
    {"decay-ratio", "optimizer.decay-fraction"},
    {"eval-strategy", "train.valid-every"},
    {"evaluation-strategy", "train.valid-every"},
    {"eval-on-start", "train.valid-first"},
    {"steps-per-print", "train.log-every"},
    {"log-freq", "train.log-every"},
    {"data-seed", "train.seed"},
    {"context-length", "train.sequence"},
    {"cutoff-len", "train.sequence"},
    {"model-max-length", "train.sequence"},
    {"initial-load-path", "train.init-from"},
    {"hf-assets-path", "train.init-from"},
    {"activation-checkpoint", "train.activations"},
    {"activation-checkpoint.mode", "train.activations"},
    {"d-model", "model.hidden"},
    {"model.dim", "model.hidden"},
    {"n-ctx", "model.max-sequence"},
    {"mixed-precision-param", "numerics.dtype"},
    {"grad-accum-dtype", "numerics.accumulate"},
    {"mixed-precision-reduce", "numerics.accumulate"},
    {"accumulate-allreduce-grads-in-fp32", "numerics.accumulate"},
    {"flash-attn", "device.attention"},
    {"save-strategy", "checkpoint.every"},
    {"checkpoint.interval", "checkpoint.every"},
    {"checkpoint.folder", "checkpoint.dir"},
    {"keep-latest-k", "checkpoint.keep"},
    {"overwrite-output-dir", "checkpoint.resume"},
    {"dump-folder", "run.dir"},
    {"run-name", "run.dir"},
    {"enable-tensorboard", "run.tensorboard"},
    {"enable-profiling", "run.trace"},
    {"ddp-timeout", "run.watchdog"},
    {"distributed-timeout-minutes", "run.watchdog"},
});

constexpr std::string_view no_dropout = "there is no dropout";
constexpr std::string_view curves =
    "run.dir/metrics.jsonl has the figures of every step, and run.tensorboard=on writes curves";
constexpr std::string_view packing =
    "offstage data pack makes tokens of text, and data.train names the files with them";
constexpr std::string_view not_compiled =
    "the model is not compiled, so there is nothing to turn on";
constexpr std::string_view shared_state =
    "ranks share the optimizer state in any case; tiers.path says where it waits, parameters.home "
    "and parameters.sharding where parameters are";
constexpr std::string_view by_itself =
    "buffers, pinned memory and how far transfers run ahead need no key: a run decides them";
constexpr std::string_view attributes =
    "request-size, queue-depth and threads follow a directory of tiers.path, each after a comma";
constexpr std::string_view answers_marked =
    "offstage data pack --template says which tokens count, in a PREFIX.mask beside the tokens";
constexpr std::string_view family_says =
    "model.family says it: llama has RMSNorm and RoPE, gpt2 LayerNorm and learned positions";
constexpr std::string_view signals_save =
    "SIGTERM, SIGINT, SIGUSR1, SIGUSR2 and the end of a Slurm job make a run save in any case";
constexpr std::string_view exported =
    "offstage export --dtype=bf16 writes a model for transformers from any checkpoint";
constexpr std::string_view no_experts = "models have no experts";
constexpr std::string_view data_parallel =
    "ranks share data, parameters and optimizer state; there is no other parallelism";
constexpr std::string_view no_adapters = "all parameters are trained; there are no adapters";
constexpr std::string_view two_betas =
    "each has a key of its own, optimizer.beta1 and optimizer.beta2";
constexpr std::string_view always_shuffled =
    "the order of training data is always shuffled, and train.seed says how";
constexpr std::string_view in_update =
    "no plan needs it: platform.cpu-update includes the conversion to 16 bits";
constexpr std::string_view activations_now =
    "train.activations has its place: none is keep there, and block is recompute";
constexpr std::string_view nothing_frozen = "all parameters are trained; none is frozen";
constexpr std::string_view batches =
    "train.global-batch is the sequences of a step, of all ranks and all micro-batches "
    "(accumulation times ranks times train.micro-batch), and train.micro-batch those that a rank "
    "computes at a time";
constexpr std::string_view horizon =
    "the rate of optimizer.schedule=cosine and linear falls up to train.steps; "
    "optimizer.decay-steps is the length of the fall at the end of wsd and cooldown";
constexpr std::string_view validations =
    "train.valid-batches counts micro-batches of windows in a validation, those of all ranks "
    "together";
constexpr std::string_view fixed_start =
    "matrices begin with a deviation of 0.02, those that end a residual branch with that over "
    "sqrt(2 model.layers)";
constexpr std::string_view warmup_part = "optimizer.warmup-steps is a number of steps";
constexpr std::string_view rate_as_it_is = "optimizer.min-lr is a rate, no part of optimizer.lr";
constexpr std::string_view documents_apart =
    "data.attention=document keeps documents of a sequence from seeing each other, "
    "data.cross-documents=false or whole says which share one, and data.separator ends them where "
    "the data do not say";
constexpr std::string_view no_target_between =
    "with data.cross-documents=false or whole no document's first token is a target; a PREFIX.mask "
    "beside the data leaves out any";
constexpr std::string_view fixed_vocab =
    "model.vocab may be larger than that of train.init-from, whose tokens come first";
constexpr std::string_view mean_of_targets =
    "a step's loss is the mean over all its targets that count, on whatever ranks and in whatever "
    "micro-batches they are";
constexpr std::string_view warmup_begins =
    "a warm-up is linear and begins with optimizer.lr / optimizer.warmup-steps";
constexpr std::string_view keys_of_schedule =
    "optimizer.min-lr, optimizer.decay-steps and optimizer.decay-fraction say more of "
    "optimizer.schedule";
constexpr std::string_view scale_itself =
    "numerics.loss-scale-start is the scale itself: 65536, and not its power 16";
constexpr std::string_view scale_halves =
    "with numerics.loss-scale=dynamic every overflow halves the scale";
constexpr std::string_view best_is_least = "the best step is that with the least validation loss";
constexpr std::string_view as_in_training =
    "a validation takes as many windows at a time as training, train.micro-batch";
constexpr std::string_view no_loader =
    "there is no data loader: a step reads its own sequences, and where an epoch ends within a "
    "step, the next one's follow";
constexpr std::string_view little_padding =
    "data.cross-documents=whole fills sequences with whole documents, so that little is padding";
constexpr std::string_view cross_entropy =
    "the loss is the targets' cross-entropy alone; train.z-loss is all that can be added";
constexpr std::string_view no_noise = "embeddings have no noise";
constexpr std::string_view always_repeats =
    "a run repeats its bits in any case, and no key turns that on";
constexpr std::string_view plan_finds =
    "offstage plan --max batch finds the largest train.micro-batch that fits";
constexpr std::string_view launchers = "mpirun or srun starts the ranks";

/// Each tool's word without a key, and what there is in its place.
constexpr auto without_key = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"dropout", no_dropout},
    {"attention-dropout", no_dropout},
    {"hidden-dropout", no_dropout},
    {"attn-pdrop", no_dropout},
    {"embd-pdrop", no_dropout},
    {"resid-pdrop", no_dropout},
    {"report-to", curves},
    {"wandb", curves},
    {"wandb-log", curves},
    {"wandb-project", curves},
    {"tokenizer", packing},
    {"tokenizer-model", packing},
    {"tokenizer-name", packing},
    {"tokenizer-type", packing},
    {"assistant-only-loss", answers_marked},
    {"completion-only-loss", answers_marked},
    {"train-on-inputs", answers_marked},
    {"chat-template", answers_marked},
    {"wall-clock-breakdown", curves},
    {"flops-profiler", curves},
    {"normalization", family_says},
    {"position-embedding-type", family_says},
    {"exit-signal-handler", signals_save},
    {"save-16bit-model", exported},
    {"num-experts", no_experts},
    {"num-local-experts", no_experts},
    {"compile", not_compiled},
    {"torch-compile", not_compiled},
    {"cpu-offload", shared_state},
    {"deepspeed", shared_state},
    {"fsdp", shared_state},
    {"offload-optimizer", shared_state},
    {"offload-param", shared_state},
    {"use-distributed-optimizer", shared_state},
    {"zero-optimization", shared_state},
    {"zero-stage", shared_state},
    {"offload-optimizer.device", shared_state},
    {"optimizer-cpu-offload", shared_state},
    {"aio.block-size", attributes},
    {"aio.intra-op-parallelism", attributes},
    {"aio.queue-depth", attributes},
    {"aio.thread-count", attributes},
    {"allgather-bucket-size", by_itself},
    {"buffer-count", by_itself},
    {"buffer-size", by_itself},
    {"contiguous-gradients", by_itself},
    {"max-in-cpu", by_itself},
    {"overlap-comm", by_itself},
    {"overlap-grad-reduce", by_itself},
    {"overlap-param-gather", by_itself},
    {"pin-memory", by_itself},
    {"pipeline-read", by_itself},
    {"pipeline-write", by_itself},
    {"reduce-bucket-size", by_itself},
    {"stage3-max-live-parameters", by_itself},
    {"stage3-max-reuse-distance", by_itself},
    {"stage3-param-persistence-threshold", by_itself},
    {"stage3-prefetch-bucket-size", by_itself},
    {"context-parallel-size", data_parallel},
    {"expert-model-parallel-size", data_parallel},
    {"pipeline-model-parallel-size", data_parallel},
    {"pipeline-parallel-size", data_parallel},
    {"sequence-parallel", data_parallel},
    {"tensor-model-parallel-size", data_parallel},
    {"tensor-parallel-size", data_parallel},
    {"adam-betas", two_betas},
    {"betas", two_betas},
    {"shuffle", always_shuffled},
    {"platform.conversion", in_update},
    {"train.recompute", activations_now},
    {"freeze", nothing_frozen},
    {"unfrozen-parameters", nothing_frozen},
    {"lora", no_adapters},
    {"lora.alpha", no_adapters},
    {"lora.r", no_adapters},
    {"lora.rank", no_adapters},
    {"lora-alpha", no_adapters},
    {"lora-r", no_adapters},
    {"lora-rank", no_adapters},
    {"use-peft", no_adapters},
    {"batch-size", batches},
    {"gradient-accumulation-steps", batches},
    {"lr-decay-iters", horizon},
    {"decay-iters", horizon},
    {"eval-iters", validations},
    {"init-method-std", fixed_start},
    {"initializer-range", fixed_start},
    {"warmup-ratio", warmup_part},
    {"min-lr-ratio", rate_as_it_is},
    {"cos-min-ratio", rate_as_it_is},
    {"cosine-min-lr-ratio", rate_as_it_is},
    {"min-lr-rate", rate_as_it_is},
    {"eod-mask-loss", no_target_between},
    {"reset-attention-mask", documents_apart},
    {"reset-position-ids", documents_apart},
    {"resize-token-embeddings", fixed_vocab},
    {"local-rank", launchers},
    {"nnodes", launchers},
    {"nproc-per-node", launchers},
    {"world-size", launchers},
    {"average-tokens-across-devices", mean_of_targets},
    {"calculate-per-token-loss", mean_of_targets},
    {"lr-warmup-init", warmup_begins},
    {"warmup-min-lr", warmup_begins},
    {"warmup-type", warmup_begins},
    {"lr-warmup-fraction", warmup_part},
    {"warmup-fraction", warmup_part},
    {"min-lr-factor", rate_as_it_is},
    {"lr-scheduler-kwargs", keys_of_schedule},
    {"initial-scale-power", scale_itself},
    {"hysteresis", scale_halves},
    {"min-loss-scale", scale_halves},
    {"greater-is-better", best_is_least},
    {"metric-for-best-model", best_is_least},
    {"per-device-eval-batch-size", as_in_training},
    {"dataloader-drop-last", no_loader},
    {"dataloader-num-workers", no_loader},
    {"dataloader-pin-memory", no_loader},
    {"dataloader-prefetch-factor", no_loader},
    {"num-workers", no_loader},
    {"group-by-length", little_padding},
    {"label-smoothing", cross_entropy},
    {"label-smoothing-factor", cross_entropy},
    {"neftune-noise-alpha", no_noise},
    {"deterministic-mode", always_repeats},
    {"full-determinism", always_repeats},
    {"auto-find-batch-size", plan_finds},
    {"accumulate-grad-batches", batches},
    {"accumulation-steps", batches},
    {"grad-accum", batches},
    {"gradient-accumulation", batches},
    {"dataset", packing},
    {"dataset-name", packing},
    {"dataset-num-proc", packing},
    {"dataset-text-field", packing},
    {"eos-token", packing},
    {"padding-free", documents_apart},
    {"push-to-hub", exported},
    {"save-only-model", exported},
    {"save-safetensors", exported},
    {"stage3-gather-16bit-weights-on-model-save", exported},
    {"load-in-4bit", no_adapters},
    {"load-in-8bit", no_adapters},
    {"use-lora", no_adapters},
    {"enable-wandb", curves},
    {"include-num-input-tokens-seen", curves},
    {"aio", attributes},
    {"aio.overlap-events", attributes},
    {"aio.single-submit", attributes},
    {"allgather-partitions", by_itself},
    {"contiguous-memory-optimization", by_itself},
    {"partition-activations", by_itself},
    {"reduce-scatter", by_itself},
    {"round-robin-gradients", by_itself},
    {"context-parallel-degree", data_parallel},
    {"data-parallel-replicate-degree", data_parallel},
    {"data-parallel-shard-degree", data_parallel},
    {"expert-parallel-degree", data_parallel},
    {"parallelism", data_parallel},
    {"pipeline-parallel-degree", data_parallel},
    {"tensor-parallel-degree", data_parallel},
});

/// The entry beside a word; empty: there is none.
std::string_view beside(std::string_view word,
                        std::span<std::pair<std::string_view, std::string_view> const> table) {
  auto const found = std::ranges::find(table, word, [](auto const& pair) { return pair.first; });
  return found == table.end() ? std::string_view{} : found->second;
}

}  // namespace

std::span<std::pair<std::string_view, std::string_view> const> other_names() {
  return names;
}

std::span<std::pair<std::string_view, std::string_view> const> words_without_key() {
  return without_key;
}

InPlaceOfWord in_place_of(std::string_view word) {
  std::string name{word};
  std::ranges::replace(name, '_', '-');
  for (std::string_view part = name;; part.remove_prefix(part.find('.') + 1)) {
    InPlaceOfWord const found{beside(part, names), beside(part, without_key)};
    if (!found.key.empty() || !found.sentence.empty() || part.find('.') == std::string_view::npos) {
      return found;
    }
  }
}

}  // namespace offstage::config
