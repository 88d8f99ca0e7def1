#include "config/key_table.hpp"

#include <algorithm>
#include <array>

#include "base/units.hpp"
#include "config/key_setters.hpp"
#include "config/key_values.hpp"
#include "config/optimizer_kinds.hpp"
#include "device/device.hpp"
#include "parameters/home.hpp"
#include "plan/order.hpp"
#include "plan/share.hpp"
#include "plan/split.hpp"
#include "tiers/virtual_tiers.hpp"

namespace offstage::config {
namespace {

using Text = std::string const&;
constexpr auto required = std::nullopt;

/// The value of `auto`, `on` or `off`.
Switch auto_or_switched(Text text) {
  return choice<Switch>(text,
                        {{"auto", Switch::automatic}, {"on", Switch::on}, {"off", Switch::off}});
}

constexpr std::array keys{
    Key{"run.dir", "PATH", required, "directory for metrics, lock and checkpoints; created",
        [](RunConfig& c, Text t) { c.run_dir = t; }},
    Key{"run.threads", "N", "0", "threads per rank; 0 takes this rank's share of the cores",
        [](RunConfig& c, Text t) { c.threads = whole<int>(t); }},
    Key{"run.watchdog", "TIME", "10min",
        "end the job if a rank makes no progress for so long, and say where it waits; 0: never",
        [](RunConfig& c, Text t) { c.watchdog = parse_duration(t); }},
    Key{"run.header", "short|full", "short",
        "lines that a run writes first: at most 30, or all; run.dir/header.txt has all of them",
        [](RunConfig& c, Text t) {
          c.full_header = choice<bool>(t, {{"short", false}, {"full", true}});
        }},
    Key{"run.progress", "auto|on|off", "auto",
        "a progress line at the end of the terminal; on: also if mpirun is in between",
        [](RunConfig& c, Text t) { c.wanted_progress = auto_or_switched(t); }},
    Key{"run.trace", "off|on", "off",
        "write run.dir/trace-RANK.json for Perfetto: each rank's transfers and computations over "
        "time; and foreseen-RANK.json, the same for simulated steps, if all rates are given",
        [](RunConfig& c, Text t) { c.trace = switched(t); }},
    Key{"run.tensorboard", "off|on", "off",
        "write curves of loss, norm, rate, speed and storage paths to run.dir for TensorBoard",
        [](RunConfig& c, Text t) { c.tensorboard = switched(t); }},
    Key{"run.allow-foreign", "false|true", "false",
        "run.dir and checkpoint.dir may be another user's, whose files are then trusted",
        [](RunConfig& c, Text t) { c.allow_foreign = truth(t); }},

    Key{"model.family", "llama|gpt2", required,
        "kind of model; train.init-from or a checkpoint has the model.* keys too",
        [](RunConfig& c, Text t) {
          c.model.family = named(t, {state::Family::llama, state::Family::gpt2});
        }},
    Key{"model.layers", "N", required,
        "transformer blocks, each of two layers that are gathered and updated",
        [](RunConfig& c, Text t) { c.model.layers = whole<std::int64_t>(t); }},
    Key{"model.hidden", "N", required, "width of the residual stream",
        [](RunConfig& c, Text t) { c.model.hidden = whole<std::int64_t>(t); }},
    Key{"model.heads", "N", required,
        "attention heads; divides model.hidden unless model.head-dim is given",
        [](RunConfig& c, Text t) { c.model.heads = whole<std::int64_t>(t); }},
    Key{"model.head-dim", "N", "model.hidden / model.heads",
        "width of a head; only llama may have another than the default",
        [](RunConfig& c, Text t) { c.model.set_head_dim(whole<std::int64_t>(t)); },
        default_head_dim},
    Key{"model.kv-heads", "N", "model.heads", "heads of keys and values; divides model.heads",
        [](RunConfig& c, Text t) { c.model.kv_heads = whole<std::int64_t>(t); },
        [](RunConfig const& c) { return std::to_string(c.model.heads); }},
    Key{"model.ffn-hidden", "N",
        "8/3 model.hidden, rounded up to a multiple of 64; gpt2: 4 model.hidden",
        "width inside the feed-forward part",
        [](RunConfig& c, Text t) { c.model.ffn_hidden = whole<std::int64_t>(t); },
        default_ffn_hidden},
    Key{"model.vocab", "N", required,
        "tokens of the vocabulary; 256 for bytes; may be more than train.init-from has: new tokens "
        "are added",
        [](RunConfig& c, Text t) { c.model.vocab = whole<std::int64_t>(t); }},
    Key{"model.max-sequence", "N", "train.sequence",
        "longest sequence of the model; gpt2: its positions",
        [](RunConfig& c, Text t) { c.model.max_sequence = whole<std::int64_t>(t); },
        [](RunConfig const& c) { return std::to_string(c.train.sequence); }},
    Key{"model.tied-head", "true|false", "true for gpt2, else false",
        "the head uses the embedding's weights",
        [](RunConfig& c, Text t) { c.model.tied_head = truth(t); },
        [](RunConfig const& c) {
          return std::string{c.model.family == state::Family::gpt2 ? "true" : "false"};
        }},
    Key{"model.qkv-bias", "true|false", "false", "llama with biases on q, k and v, as in Qwen2",
        [](RunConfig& c, Text t) { c.model.qkv_bias = truth(t); }},
    Key{"model.qk-norm", "none|head|all", "none",
        "RMSNorm of queries and keys before RoPE: for each head, as in Qwen3, or for all heads "
        "together, as in OLMo 2",
        [](RunConfig& c, Text t) {
          using enum state::QkNorm;
          c.model.qk_norm = named(t, {none, head, all});
        }},
    Key{"model.norms-after", "true|false", "false",
        "attention and the MLP are followed by their norms, as in OLMo 2, instead of preceded by "
        "them",
        [](RunConfig& c, Text t) { c.model.norms_after = truth(t); }},
    Key{"model.window", "N", "0",
        "sliding window, as in Mistral: keys that a query sees, its own included; 0: all up to its "
        "own",
        [](RunConfig& c, Text t) { c.model.window = whole<std::int64_t>(t); }},
    Key{"model.rope-theta", "X", "10000", "base of the rotary embedding's wavelengths",
        [](RunConfig& c, Text t) { c.model.rope_theta = real(t); }},
    Key{"model.rope-scaling", "none|linear|llama3|yarn", "none",
        "how wavelengths are stretched; linear: all alike; llama3: long ones, as in Llama 3.1; "
        "yarn: as in YaRN",
        [](RunConfig& c, Text t) {
          using enum state::RopeScaling;
          c.model.rope_scaling = named(t, {none, linear, llama3, yarn});
        }},
    Key{"model.rope-factor", "X", "8", "factor by which wavelengths are stretched",
        [](RunConfig& c, Text t) { c.model.rope_factor = real(t); }},
    Key{"model.rope-low-frequency", "X", "1", "llama3: low_freq_factor; yarn: beta_slow",
        [](RunConfig& c, Text t) { c.model.rope_low_frequency = real(t); }},
    Key{"model.rope-high-frequency", "X", "32 for yarn, else 4",
        "llama3: high_freq_factor; yarn: beta_fast",
        [](RunConfig& c, Text t) { c.model.rope_high_frequency = real(t); },
        [](RunConfig const& c) {
          return std::string{c.model.rope_scaling == state::RopeScaling::yarn ? "32" : "4"};
        }},
    Key{"model.rope-original-sequence", "N", "8192",
        "llama3, yarn: original_max_position_embeddings",
        [](RunConfig& c, Text t) { c.model.rope_original_sequence = whole<std::int64_t>(t); }},
    Key{"model.rope-attention-factor", "X", "0.1 ln(model.rope-factor) + 1 for yarn, else 1",
        "yarn: cosines and sines are multiplied by it",
        [](RunConfig& c, Text t) { c.model.rope_attention_factor = real(t); },
        default_attention_factor},
    Key{"model.norm-eps", "X", "1e-5", "added to the mean square or variance in norms",
        [](RunConfig& c, Text t) { c.model.norm_epsilon = real(t); }},
    Key{"model.exact-gelu", "true|false", "false",
        "gpt2 with GELU itself, as in Cerebras-GPT, instead of its approximation by tanh",
        [](RunConfig& c, Text t) { c.model.exact_gelu = truth(t); }},

    Key{"data.train", "PATH[:WEIGHT],...", required,
        "files of tokens to train on, or patterns of files ('*', '?', [abc]); their shares of the "
        "samples follow their sizes, or weights if all have one; files of a pattern share its "
        "weight by their sizes",
        [](RunConfig& c, Text t) { c.data.train = data::parse_sources(t); }},
    Key{"data.valid", "PATH,...|N%", "",
        "files of tokens to validate on, or patterns of files, one after the other; each has a "
        "loss of its own beside that of all; N%: the end of every file of data.train, which is "
        "not trained on; empty: no validation",
        set_validation_files},
    Key{"data.skip", "STEP:N,...", "",
        "leave out the next N sequences behind step STEP, which made a loss jump",
        [](RunConfig& c, Text t) { c.data.skips = parse_skips(t); }},
    Key{"data.format", "auto|text|megatron|llmc|nanogpt|u32", "auto",
        "text: every byte is a token; nanogpt, u32: tokens of 2 and of 4 bytes without a header; "
        "auto: by name and first bytes, never u32",
        [](RunConfig& c, Text t) {
          c.data.format =
              choice<data::Format>(t, {data::format_words.begin(), data::format_words.end()});
        }},
    Key{"data.cross-documents", "true|false|whole", "true",
        "true: a sequence may have the end of one document and the beginning of the next; false: "
        "it has tokens of one document; whole: it has whole documents, as many as fit, and longer "
        "ones are cut",
        [](RunConfig& c, Text t) {
          c.data.rule =
              choice<data::WindowRule>(t, {data::rule_words.begin(), data::rule_words.end()});
        }},
    Key{"data.attention", "window|document", "document for data.cross-documents=whole, else window",
        "window: a token sees all before it in its sequence; document: those of its document alone",
        [](RunConfig& c, Text t) {
          c.data.attention_by_document =
              choice<bool>(t, {data::attention_words.begin(), data::attention_words.end()});
        },
        [](RunConfig const& c) -> std::string {
          return c.data.rule == data::WindowRule::whole ? "document" : "window";
        }},
    Key{"data.mask", "on|off", "on",
        "a PREFIX.mask beside a file of tokens says which tokens count in the loss; off: all do",
        [](RunConfig& c, Text t) { c.data.mask = switched(t); }},
    Key{"data.separator", "N", "",
        "token that ends a document, for formats that do not store where documents end",
        [](RunConfig& c, Text t) {
          c.data.separator.reset();
          if (!t.empty()) {
            c.data.separator = whole<std::int32_t>(t);
          }
        }},

    Key{"train.steps", "N|Nepochs", required,
        "steps in all, counted from the first start; 3epochs: so many that each sequence of "
        "data.train is seen three times",
        set_steps},
    Key{"train.sequence", "N", "1024", "tokens per sequence",
        [](RunConfig& c, Text t) { c.train.sequence = whole<std::int64_t>(t); }},
    Key{"train.micro-batch", "N", "1", "sequences that a rank takes at once",
        [](RunConfig& c, Text t) { c.train.micro_batch = whole<std::int64_t>(t); }},
    Key{"train.global-batch", "N", "train.micro-batch",
        "sequences per step over all ranks; a multiple of train.micro-batch",
        [](RunConfig& c, Text t) { c.train.global_batch = whole<std::int64_t>(t); },
        [](RunConfig const& c) { return std::to_string(c.train.micro_batch); }},
    Key{"train.seed", "N", "0", "seed of the first weights and of the order of the data",
        [](RunConfig& c, Text t) { c.train.seed = seed(t); }},
    Key{"train.z-loss", "X", "0",
        "adds to each token's loss X times the square of the logarithm of the sum of its "
        "exponentiated logits, as in "
        "PaLM (1e-4): logits stay small; printed losses and validations are without it",
        [](RunConfig& c, Text t) { c.train.z_loss = real(t); }},
    Key{"train.init-from", "PATH", "",
        "first weights: a Hugging Face directory or a checkpoint; empty: random",
        [](RunConfig& c, Text t) { c.train.init_from = t; }},
    Key{"train.max-time", "TIME", "0",
        "save and end with 75 within this time (90s, 30min, HH:MM:SS); 0: no limit",
        [](RunConfig& c, Text t) { c.train.max_time = parse_duration(t); }},
    Key{"train.time-margin", "TIME", "60s",
        "in a Slurm job: time between the end of the last save and the job's time limit, which "
        "Offstage finds out",
        [](RunConfig& c, Text t) { c.train.time_margin = parse_duration(t); }},
    Key{"train.max-bad-steps", "N", "10", "give up after so many non-finite steps in a row",
        [](RunConfig& c, Text t) { c.train.max_bad_steps = whole<std::int64_t>(t); }},
    Key{"train.activations", "auto|keep|keep:X|recompute|host|X|storage|storage:X", "auto",
        "place of blocks' activations until backward: kept on the device, computed again from the "
        "blocks' inputs, in host memory, or in host memory and for the rest on storage; X: the "
        "part that stays (keep:X) or leaves, 0 to 1, while the rest is computed again; auto: the "
        "quickest choice that fits",
        [](RunConfig& c, Text t) { c.train.activations = activations::parse_policy(t); }},
    Key{"train.schedule", "horizontal|vertical|auto", "horizontal",
        "vertical: all micro-batches of a rank pass a layer before the next layer, so that "
        "parameters are brought twice a step; blocks' inputs wait, the rest is computed again; "
        "auto: vertical if parameters live elsewhere and it moves fewer bytes",
        [](RunConfig& c, Text t) {
          c.train.schedule = choice<LayerSchedule>(t, {{"horizontal", LayerSchedule::horizontal},
                                                       {"vertical", LayerSchedule::vertical},
                                                       {"auto", LayerSchedule::automatic}});
        }},
    Key{"train.valid-every", "N", "0", "steps between validations; 0: at the end alone",
        [](RunConfig& c, Text t) { c.train.valid_every = whole<std::int64_t>(t); }},
    Key{"train.valid-batches", "N", "0",
        "a validation takes N times train.micro-batch windows, the first ones of each path; 0: all",
        [](RunConfig& c, Text t) { c.train.valid_batches = whole<std::int64_t>(t); }},
    Key{"train.valid-first", "on|off", "off", "a validation before the first step, too",
        [](RunConfig& c, Text t) { c.train.valid_first = switched(t); }},
    Key{"train.patience", "N", "0",
        "the run is done after so many validations in a row that are no better than the best; 0: "
        "at train.steps alone",
        [](RunConfig& c, Text t) { c.train.patience = whole<std::int64_t>(t); }},
    Key{"train.log-every", "N", "10", "steps between log lines",
        [](RunConfig& c, Text t) { c.train.log_every = whole<std::int64_t>(t); }},

    Key{"optimizer.lr", "X", "3e-4", "highest learning rate",
        [](RunConfig& c, Text t) { c.optimizer.lr = real(t); }},
    Key{"optimizer.kind", "adamw|adam|adagrad|rmsprop|sgd|lion", "adamw",
        "adam has weight decay in the gradient (L2), and adamw is what Megatron and DeepSpeed call "
        "Adam; another kind needs a fresh start",
        set_optimizer_kind},
    Key{"optimizer.moments", "fp32|bf16|8bit", "fp32",
        "type of momentum and variance; smaller types are rounded stochastically",
        [](RunConfig& c, Text t) {
          using enum kernels::Moments;
          c.optimizer.moments = named(t, {fp32, bf16, int8});
        }},
    Key{"optimizer.momentum", "X", "0",
        "momentum of rmsprop and sgd; 0: none, and the state has no plane for it",
        [](RunConfig& c, Text t) { c.optimizer.momentum = real(t); }},
    Key{"optimizer.beta1", "X", "0.9", "decay of the momentum in adamw, adam and lion",
        [](RunConfig& c, Text t) { c.optimizer.beta1 = real(t); }},
    Key{"optimizer.beta2", "X", "0.95; rmsprop and lion: 0.99",
        "decay of the variance in adamw, adam and rmsprop; lion: decay of the momentum",
        [](RunConfig& c, Text t) { c.optimizer.beta2 = real(t); },
        [](RunConfig const& c) { return std::string{kind_of(c.optimizer.kind).default_beta2}; }},
    Key{"optimizer.eps", "X", "1e-8",
        "added to the root of the variance in adamw, adam, adagrad and rmsprop",
        [](RunConfig& c, Text t) { c.optimizer.eps = real(t); }},
    Key{"optimizer.weight-decay", "X", "adamw, lion: 0.1; others: 0",
        "decoupled in adamw and lion, part of the gradient in others; norms and biases have none",
        [](RunConfig& c, Text t) { c.optimizer.weight_decay = real(t); },
        [](RunConfig const& c) { return std::string{kind_of(c.optimizer.kind).default_decay}; }},
    Key{"optimizer.clip", "X", "1.0", "limit of the gradient's global norm; 0: no limit",
        [](RunConfig& c, Text t) { c.optimizer.clip = real(t); }},
    Key{"optimizer.schedule", "cosine|linear|constant|wsd|cooldown|inverse-sqrt", "cosine",
        "after the warm-up: cosine or linear over all steps; constant; or, for runs that may be "
        "made longer, wsd (constant, a linear fall at the end), cooldown (the same by 1 - sqrt) or "
        "inverse-sqrt (lr sqrt(optimizer.warmup-steps / step))",
        [](RunConfig& c, Text t) {
          using enum RateSchedule;
          c.optimizer.schedule = named(t, {constant, linear, cosine, wsd, cooldown, inverse_sqrt});
        }},
    Key{"optimizer.schedule-begin", "N", "0",
        "step from which the schedule counts, warm-up included: a later stage's first checkpoint",
        [](RunConfig& c, Text t) { c.optimizer.schedule_begin = whole<std::int64_t>(t); }},
    Key{"optimizer.warmup-steps", "N", "0", "steps in which the rate rises; the first has lr / N",
        [](RunConfig& c, Text t) { c.optimizer.warmup_steps = whole<std::int64_t>(t); }},
    Key{"optimizer.min-lr", "X", "0",
        "learning rate of the last step (constant has none); inverse-sqrt: the least",
        [](RunConfig& c, Text t) { c.optimizer.min_lr = real(t); }},
    Key{"optimizer.decay-fraction", "X", "0.2",
        "part of the steps, at the end, in which the rate of wsd and cooldown falls",
        [](RunConfig& c, Text t) { c.optimizer.decay_fraction = real(t); }},
    Key{"optimizer.decay-steps", "N", "0",
        "steps at the end in which the rate of wsd and cooldown falls; 0: by "
        "optimizer.decay-fraction",
        [](RunConfig& c, Text t) { c.optimizer.decay_steps = whole<std::int64_t>(t); }},

    Key{"numerics.dtype", "bf16|fp16|fp32", "bf16",
        "type of working copy, activations and gradients",
        [](RunConfig& c, Text t) {
          c.numerics.dtype = named(t, {DType::bf16, DType::fp16, DType::fp32});
        }},
    Key{"numerics.loss-scale-start", "X", "65536", "fp16: first loss scale, a power of two",
        [](RunConfig& c, Text t) { c.numerics.loss_scale.start = real(t); }},
    Key{"numerics.loss-scale-window", "N", "2000",
        "fp16: steps without overflow after which the loss scale doubles",
        [](RunConfig& c, Text t) { c.numerics.loss_scale.window = whole<std::int64_t>(t); }},
    Key{"numerics.loss-scale", "dynamic|X", "dynamic",
        "fp16: halved when gradients overflow, or fixed to a power of two", set_loss_scale},
    Key{"numerics.accumulate", "fp32|16bit", "fp32",
        "type to which sums over micro-batches are rounded",
        [](RunConfig& c, Text t) {
          c.numerics.accumulate_fp32 = choice<bool>(t, {{"fp32", true}, {"16bit", false}});
        }},
    Key{"numerics.sum-block", "N", "1",
        "gradients of N consecutive micro-batches are summed first, and then those sums; the bits "
        "depend on N, and not on the number of ranks; 1: gradients are added one after the other",
        [](RunConfig& c, Text t) { c.numerics.sum_block = whole<std::int64_t>(t); }},

    Key{"device.kind", "auto|cuda|host", "auto",
        "a GPU, or host memory and cores in its place; auto: GPUs if each rank has one",
        [](RunConfig& c, Text t) {
          c.device.kind = choice<DeviceKind>(t, {{"auto", DeviceKind::automatic},
                                                 {"cuda", DeviceKind::cuda},
                                                 {"host", DeviceKind::host}});
        }},
    Key{"device.memory", "SIZE", "0",
        "limit of the device's memory, with NCCL's buffers; 0: no limit",
        [](RunConfig& c, Text t) { c.device.memory = parse_bytes(t); }},
    Key{"device.share-gpu", "false|true", "false", "whether several ranks may compute on one GPU",
        [](RunConfig& c, Text t) { c.device.share_gpu = truth(t); }},
    Key{"device.attention", "auto|cudnn|own", "auto",
        "library that computes attention of 16-bit types on a GPU; auto: cuDNN if it is found, has "
        "the shape and repeats its bits, else Offstage's own kernels",
        [](RunConfig& c, Text t) {
          c.device.attention = choice<Attention>(t, {{"auto", Attention::automatic},
                                                     {"cudnn", Attention::cudnn},
                                                     {"own", Attention::own}});
        }},
    Key{"device.check", "off|launches", "off",
        "launches: wait for each kernel of a GPU, so that an error names it; slow",
        [](RunConfig& c, Text t) {
          c.device.check = choice<device::Check>(
              t, {{"off", device::Check::off}, {"launches", device::Check::launches}});
        }},
    Key{"device.emulate", "NAME=RATE,...", "",
        "host: emulate a device with rates such as "
        "h2d=25GB/s,d2h=25GB/s,compute=400T,update=10G,host-update=1G,host-sum=90GB/s, any of them",
        [](RunConfig& c, Text t) { c.device.emulation = device::parse_emulation(t); }},

    Key{"comm.backend", "auto|mpi|nccl", "auto",
        "library by which ranks pass layers; auto: NCCL if each rank has a GPU of its own with "
        "room for it, else MPI",
        [](RunConfig& c, Text t) {
          c.comm_backend = choice<CommBackend>(t, {{"auto", CommBackend::automatic},
                                                   {"mpi", CommBackend::mpi},
                                                   {"nccl", CommBackend::nccl}});
        }},

    Key{"parameters.home", "device|host|storage|node|auto", "device",
        "place of the 16-bit working copy; if it is not on the device, layers are brought there "
        "ahead of use; node: host memory that a node's ranks share, so that parameters reach a "
        "node once in a step; auto: decided by plan.choose=on",
        set_parameter_home},
    Key{"parameters.sharding", "auto|zero3|zero2|zero1", "zero3",
        "time for which a layer that ranks have gathered stays whole on the device; zero3: one "
        "use; zero2: a step, so that it is gathered once; zero1: a step, and gradients stay whole "
        "until a block of numerics.sum-block is summed, which zero1 needs; auto: zero1 or zero2 if "
        "the device has room, or decided by plan.choose=on",
        set_parameter_sharding},

    Key{"tiers.path", "PATH[,ATTRIBUTE...]", "",
        "directory on storage for the optimizer state that host memory has no room for; may be "
        "given several times; empty: all state lives in host memory",
        add_path, nullptr, true},
    Key{"tiers.exclusive", "auto|true|false", "auto",
        "one process of a node at a time uses a storage path; auto: unless several move more, "
        "which a short trial at the start finds out",
        [](RunConfig& c, Text t) {
          c.storage.exclusive = choice<Switch>(
              t, {{"auto", Switch::automatic}, {"true", Switch::on}, {"false", Switch::off}});
        }},
    Key{"tiers.split", "auto|paper|first|A:B:...", "auto",
        "part of the extents on each storage path: auto (all paths end together), paper (by "
        "min(read, write)), first (the first path alone), or weights",
        [](RunConfig& c, Text t) { c.storage.split = plan::parse_split(t); }},
    Key{"tiers.split-parameters", "auto|on|off", "auto",
        "the state keeps the half of a parameter that the bf16 working copy lacks, 2 bytes less "
        "each; auto: with state on storage, update.overlap=off, no persistent path, no "
        "checkpoint.rate or checkpoint.local, and a copy that updates can read in place",
        [](RunConfig& c, Text t) { c.storage.split_parameters = auto_or_switched(t); }},
    Key{"tiers.verify", "always|sample|off", "always",
        "reads from storage whose checksum is compared; sample: one in 16",
        [](RunConfig& c, Text t) {
          using tiers::Verify;
          c.storage.verify = choice<Verify>(
              t, {{"always", Verify::always}, {"sample", Verify::sample}, {"off", Verify::off}});
        }},
    Key{"tiers.cache", "auto|SIZE", "auto",
        "most of the state per node that stays in host memory; auto: as much as tiers.host-memory "
        "allows",
        [](RunConfig& c, Text t) { c.storage.most_cache = t == "auto" ? -1 : parse_bytes(t); }},
    Key{"tiers.evict", "farthest|oldest", "farthest",
        "state that leaves host memory first without update.overlap: that which this step needs no "
        "more, or the least recently used; with it the first subgroups stay",
        [](RunConfig& c, Text t) {
          using plan::Evict;
          c.storage.evict =
              choice<Evict>(t, {{"farthest", Evict::farthest}, {"oldest", Evict::oldest}});
        }},
    Key{"tiers.allow-tmpfs", "false|true", "false",
        "whether tiers.path may lie in host memory, which tiers.host-memory then does not count",
        [](RunConfig& c, Text t) { c.allow_tmpfs = truth(t); }},
    Key{"tiers.host-memory", "auto|SIZE", "auto",
        "limit per node of state, buffers and gradients in host memory", set_host_memory},

    Key{"update.subgroup-size", "N", "100M", "parameters updated as one piece",
        [](RunConfig& c, Text t) { c.subgroup_size = parse_count(t); }},
    Key{"update.order", "alternate|ascending", "alternate",
        "order of subgroups: alternate turns round in every second step, so that subgroups still "
        "in memory come first",
        [](RunConfig& c, Text t) {
          using plan::UpdateOrder;
          c.storage.order = choice<UpdateOrder>(
              t, {{"alternate", UpdateOrder::alternate}, {"ascending", UpdateOrder::ascending}});
        }},
    Key{"update.gradients", "delayed|flush-fp32", "delayed",
        "delayed: gradients are converted to FP32 in the update; flush-fp32: before it, and "
        "through storage, as in ZeRO-Infinity; without tiers.path they stay in memory",
        [](RunConfig& c, Text t) {
          c.storage.flush_fp32 = choice<bool>(t, {{"delayed", false}, {"flush-fp32", true}});
        }},

    Key{"update.overlap", "auto|on|off", "auto",
        "the update begins under backward, before the norm is known, and is made again if the "
        "gradient is clipped; auto: if state is on storage, as long as it gains",
        [](RunConfig& c, Text t) { c.overlap = auto_or_switched(t); }},

    Key{"update.device-share", "auto|X", "auto",
        "part of the updates that the device computes, 0 to 1, of the state that does not live "
        "there (update.device-resident); auto: what takes the least time",
        set_device_share},
    Key{"update.device-resident", "X|auto", "0",
        "part of the state that lives on the device: 0 to 1; auto: decided by plan.choose=on",
        set_device_resident},
    Key{"update.device-chunk", "N", "4M",
        "parameters that go to the device and back at a time; rounded down to a multiple of 4096",
        set_device_chunk},
    Key{"update.device-gradients", "auto|SIZE", "auto",
        "device memory per rank for gradients that are summed there, or wait there for the "
        "device's update; auto: the rest of the memory",
        set_device_gradients},
    Key{"update.transfers", "overlap|blocking", "overlap",
        "overlap: copies go on beside everything else; blocking: copies and the CPU's work take "
        "turns, as in ZeRO-3",
        [](RunConfig& c, Text t) {
          using plan::Transfers;
          c.share.transfers = choice<Transfers>(
              t, {{"overlap", Transfers::overlap}, {"blocking", Transfers::blocking}});
        }},

    Key{"plan.choose", "off|on", "off",
        "on: decides together, for the quickest step by the machine's rates, what is auto of "
        "parameters.home, parameters.sharding, train.schedule, train.activations, "
        "tiers.split-parameters, update.overlap, update.device-share and update.device-resident, "
        "and update.subgroup-size unless it is given",
        [](RunConfig& c, Text t) { c.plan.choose = switched(t); }},
    Key{"plan.clip-rate", "X", "0",
        "for predictions: part of all steps that are clipped, 0 to 1; their updates under backward "
        "are made again",
        [](RunConfig& c, Text t) { c.plan.clip_rate = real(t); }},

    Key{"platform.cpu-update", "N", "0",
        "parameters per second that a rank's cores update; 0 here and below: not known",
        [](RunConfig& c, Text t) { c.platform.cpu_update = count_rate(t); }},
    Key{"platform.device-update", "N", "0", "parameters per second that a rank's device updates",
        [](RunConfig& c, Text t) { c.platform.device_update = count_rate(t); }},
    Key{"platform.products", "N", "0", "FLOP/s of products on a rank's device, as 150T",
        [](RunConfig& c, Text t) { c.platform_products = flops_rate(t); }},
    Key{"platform.block-forward", "N", "0",
        "FLOP/s of a transformer block's forward on a rank's device, as 100T",
        [](RunConfig& c, Text t) { c.platform_passes.block_forward = flops_rate(t); }},
    Key{"platform.block-backward", "N", "0",
        "FLOP/s of a transformer block's backward on a rank's device",
        [](RunConfig& c, Text t) { c.platform_passes.block_backward = flops_rate(t); }},
    Key{"platform.host-sum", "RATE", "0",
        "bytes per second that a rank's cores read and write to add gradients",
        [](RunConfig& c, Text t) { c.platform_passes.host_sum = bytes_rate(t); }},
    Key{"platform.rank-link", "RATE", "0",
        "bytes per second that come to a rank from the others when layers are gathered",
        [](RunConfig& c, Text t) { c.platform_passes.rank_link = bytes_rate(t); }},
    Key{"platform.host-to-device", "RATE", "0",
        "rate of a rank's link from pinned memory to the device, as in 25GB/s",
        [](RunConfig& c, Text t) { c.platform.host_to_device = bytes_rate(t); }},
    Key{"platform.device-to-host", "RATE", "0",
        "rate of a rank's link from the device to pinned memory",
        [](RunConfig& c, Text t) { c.platform.device_to_host = bytes_rate(t); }},
    Key{"platform.host-to-device-both", "RATE", "0",
        "rate to the device while the other direction runs too",
        [](RunConfig& c, Text t) { c.platform.host_to_device_both = bytes_rate(t); }},
    Key{"platform.device-to-host-both", "RATE", "0",
        "rate from the device while the other direction runs too",
        [](RunConfig& c, Text t) { c.platform.device_to_host_both = bytes_rate(t); }},
    Key{"platform.host-memory", "RATE", "0",
        "bytes per second that a rank's cores read and write together",
        [](RunConfig& c, Text t) { c.platform.host_memory = bytes_rate(t); }},
    Key{"platform.measured", "TEXT", "",
        "time and place of the measurement, as offstage probe writes it",
        [](RunConfig& c, Text t) { c.platform_measured = t; }},

    Key{"checkpoint.dir", "PATH", "run.dir/checkpoints", "directory for checkpoints; created",
        [](RunConfig& c, Text t) { c.checkpoint.dir = t; },
        [](RunConfig const& c) { return c.run_dir + "/checkpoints"; }},
    Key{"checkpoint.every", "auto|N|TIME", "auto",
        "50 (steps), 30min, 0 (at the end alone), or auto: the interval that loses least time, by "
        "the cost of a save and checkpoint.mtbf",
        set_checkpoint_every},
    Key{"checkpoint.mtbf", "TIME", "24h",
        "for checkpoint.every=auto: mean time until a node failure or preemption ends the whole "
        "job without a warning",
        [](RunConfig& c, Text t) { c.checkpoint.mtbf = parse_duration(t); }},
    Key{"checkpoint.local", "PATH", "",
        "directory on storage of each node for checkpoints of level 1; a restart on these nodes "
        "takes the newest; extents are kept by reference if the directory is on the file system of "
        "a tiers.path; empty: no level 1",
        [](RunConfig& c, Text t) { c.checkpoint.local = t; }},
    Key{"checkpoint.local-every", "auto|N|TIME", "auto",
        "as checkpoint.every, for level 1; auto: by the cost of such a save and checkpoint.mtbf",
        set_local_every},
    Key{"checkpoint.partner", "off|copy", "off",
        "level 3: each node's checkpoint of level 1 is copied to the next node's checkpoint.local, "
        "beside later steps, so that the loss of one node costs no more than the steps since then; "
        "takes two nodes or more",
        [](RunConfig& c, Text t) {
          c.checkpoint.partner = choice<bool>(t, {{"off", false}, {"copy", true}});
        }},
    Key{"checkpoint.node-mtbf", "TIME", "4320h",
        "for checkpoint.every=auto with checkpoint.local: mean time until one node is lost with "
        "its storage; checkpoint.dir is then saved for such a loss, or with checkpoint.partner for "
        "the loss of two nodes in one day",
        [](RunConfig& c, Text t) { c.checkpoint.node_mtbf = parse_duration(t); }},
    Key{"checkpoint.keep", "N", "2", "complete checkpoints to keep, at least 2",
        [](RunConfig& c, Text t) { c.checkpoint.keep = whole<int>(t); }},
    Key{"checkpoint.keep-every", "N", "0",
        "steps between checkpoints that are saved in any case and never removed; 0: none",
        [](RunConfig& c, Text t) { c.checkpoint.keep_every = whole<std::int64_t>(t); }},
    Key{"checkpoint.keep-best", "on|off", "off",
        "a step whose validation is the best so far is saved, and stays until a better one is",
        [](RunConfig& c, Text t) { c.checkpoint.keep_best = switched(t); }},
    Key{"checkpoint.overlap", "on|off", "on",
        "a checkpoint is written under forward and backward of the next step; off: the step waits",
        [](RunConfig& c, Text t) { c.checkpoint.overlap = switched(t); }},
    Key{"checkpoint.files", "auto|rank|node", "auto",
        "a file for each rank, or one for each node, which its ranks write together; auto: node "
        "from 256 ranks on",
        [](RunConfig& c, Text t) {
          using enum CheckpointFiles;
          c.checkpoint.files =
              choice<CheckpointFiles>(t, {{"auto", automatic}, {"rank", rank}, {"node", node}});
        }},
    Key{"checkpoint.rate", "RATE|N%", "0",
        "bytes per second of a node at which state on storage is saved beside later steps, or a "
        "percentage of the rates at which it writes to checkpoint.dir and reads from each path; "
        "takes slots for that state once more; 0: within one step",
        set_checkpoint_rate},
    Key{"checkpoint.resume", "auto|none|PATH", "auto",
        "checkpoint to go on from; auto: the newest complete one, or a fresh start if there is "
        "none; none: a fresh start; PATH: this one, the newest of a run, or RUN/best",
        [](RunConfig& c, Text t) { c.checkpoint.resume = t; }},
};

}  // namespace

std::span<Key const> key_table() {
  return keys;
}

Key const* find_key(std::string_view name) {
  auto const* const found = std::ranges::find(keys, name, &Key::name);
  return found == keys.end() ? nullptr : found;
}

}  // namespace offstage::config
