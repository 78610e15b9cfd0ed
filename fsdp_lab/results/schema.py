"""The table of all fields of a results row: name, type, unit and meaning. `validation` checks rows against it.

A row is one JSON object. ``required`` is "always", "ok" (when status is ok: a failed run has measured less) or "no".
A field that is not given is written as null, so that all rows have the same keys. A NaN or an infinity is written as
null too, and its field (``name`` or ``name.key``) is listed in ``nonfinite_fields``.

Byte fields count what one rank sends. Every ratio names its denominator and is computed from counts in the row
(`results.derived`; the validation computes it again). Older rows are migrated when they are read (`results.migrate`).
"""

from dataclasses import dataclass
from typing import Literal

SCHEMA_VERSION = 4


@dataclass(frozen=True)
class Field:
    """One field. ``kind`` is a type's name, "object of" a type, "list of" a type, or the allowed texts joined by ``|``.

    ``since`` is the schema version that introduced the field: rows of earlier versions may have null.
    """

    name: str
    kind: str
    unit: str
    meaning: str
    required: Literal["always", "ok", "no"] = "ok"
    nullable: bool = False  # may be null although the run is ok
    since: int = 1


FIELDS = (
    # What ran
    Field("schema_version", "int", "", "version of this table", "always"),
    Field("migrated_from", "int", "", "version that the row was written in, if an earlier one; else null", "no"),
    Field("status", "ok|failed|preempted", "", "how the run ended", "always"),
    Field("error", "str", "", "one line on what went wrong; null when nothing did", "no"),
    Field("run_name", "str", "", "name of the run", "always"),
    Field("time_utc", "str", "ISO 8601", "when the row was written, UTC", "always"),
    Field("world_size", "int", "ranks", "number of ranks", "always"),
    Field(
        "virtual_ranks",
        "int",
        "ranks",
        "world_size where one process played all ranks (no times then); null: a process a rank",
        "no",
    ),
    Field("backend", "str", "", "torch.distributed backend: gloo, nccl"),
    Field("model", "str", "", "model preset, or the folder it was loaded from"),
    Field(
        "num_parameters",
        "int",
        "",
        "parameters of the whole model, shared ones once, without adapters; of a draft alone",
    ),
    Field(
        "trainable_parameters",
        "int",
        "",
        "parameters that are trained: all, or those of adapters alone; null in older rows, which trained all",
        "no",
    ),
    Field("lora_rank", "int", "", "rank of LoRA adapters (docs/trainer/lora.md); null: all weights were trained", "no"),
    Field("lora_alpha", "float", "", "scale of the adapters, times the rank; null without them", "no"),
    Field("lora_targets", "list of str", "", "layers of a block that have adapters; null without them", "no"),
    Field(
        "draft_target",
        "str",
        "",
        "folder of the target of a draft (docs/trainer/eagle.md), which has no perplexity; null: a language model was "
        "trained",
        "no",
    ),
    Field("dataset", "str", "", "name or path of the corpus"),
    Field("dataset_tokens", "int", "tokens", "tokens of the whole corpus, both splits"),
    Field(
        "data_sources",
        "object",
        "",
        "of a --data_mix by source: weight asked for, share of the tokens trained on, their number, and how many times "
        "the source's training split that is (epochs); null without a mix",
        "no",
    ),
    Field(
        "data_digest",
        "str",
        "hex",
        "digest of all sequences trained on, in order, whichever rank had them; null where unknown (older rows)",
        "no",
    ),
    Field("max_length", "int", "tokens", "length of a sequence"),
    Field("batch_size", "int", "sequences", "sequences per rank and micro-batch"),
    Field("gradient_accumulation_steps", "int", "", "micro-batches per optimiser step"),
    Field("steps", "int", "", "optimiser steps, skipped ones included"),
    Field("tokens_seen", "int", "tokens", "tokens trained on, over all ranks; padding of conversations left out"),
    Field("compress_method", "str", "", "gradient compression method", "always"),
    Field("compress_config", "object", "", "its settings", "always"),
    Field("param_compress_method", "str", "", "compression method of the parameter all-gather"),
    Field("param_compress_config", "object", "", "its settings"),
    Field("comm_dtype", "str", "", "dtype that FSDP2 reduces gradients in"),
    Field("dp_replicas", "int", "copies", "copies of the weights that ranks keep; null: one, sharded by FSDP2", "no"),
    Field("tp", "int", "ranks", "ranks that divide every block; null: 1", "no"),
    Field("layout", "tp|sp|galaxy|galaxy2", "", "what they divide (docs/trainer/layouts.md)", "no"),
    Field("shares", "list of float", "", "how much each of them takes of it", "no"),
    Field("pp", "int", "ranks", "ranks of a pipeline; null: 1", "no"),
    Field("pp_schedule", "gpipe|1f1b|interleaved|zbv", "", "the order of its micro-batches", "no"),
    Field("activation_method", "str", "", "compression method of activations between tp or pp ranks", "no"),
    Field("activation_grad_method", "str", "", "compression method of the gradients of these activations", "no"),
    Field(
        "outer",
        "local_sgd|diloco",
        "",
        "how replicas that train by themselves synchronise (docs/library/local-steps.md); null: ranks take every step "
        "together",
        "no",
    ),
    Field("outer_every", "int", "steps", "optimiser steps between two synchronisations; null without outer", "no"),
    Field("outer_method", "str", "", "compression method of what each replica has learnt; null without outer", "no"),
    Field("outer_gather_method", "str", "", "compression method of its mean on the way back", "no"),
    Field("outer_learning_rate", "float", "", "rate of the outer step; null without outer", "no"),
    Field("outer_momentum", "float", "0 to 1", "Nesterov momentum of the outer step; null without outer", "no"),
    Field(
        "optimizer",
        "adamw|muon|demo|onebit_adam|dion|ef21_muon|zero_one_adam",
        "",
        "what updates the weights (docs/library/muon.md, docs/library/optimizers.md); null in older rows: adamw",
        "no",
    ),
    Field(
        "optimizer_method",
        "str",
        "",
        "compression method of what the optimizer exchanges; its bytes are those of the operation optimizer; null with "
        "adamw, which exchanges nothing",
        "no",
    ),
    Field("param_dtype", "str", "", "dtype of the gathered parameters"),
    Field(
        "bf16_products",
        "native|float32",
        "",
        "how a CPU took products of 16-bit matrices: as PyTorch does, or in float32, rounded once, where it has no "
        "instructions for them (docs/comparing/measuring.md); null in other dtypes and on GPUs",
        "no",
    ),
    Field(
        "operators",
        "object of str",
        "",
        "what computed each operator of the model (docs/trainer/operators.md); null for drafts, and in older rows",
        "no",
    ),
    Field(
        "start_digest",
        "str",
        "hex",
        "digest of the saved weights in model_dir, as this process found them; null: fresh weights, a draft, or an "
        "older row",
        "no",
    ),
    Field("seed", "int", "", "seed of the run", "always"),
    Field("config", "object", "", "every setting, resolved", "always"),
    Field("config_hash", "str", "sha256", "digest of the settings that affect the training", "always"),
    Field(
        "arm_settings",
        "object",
        "",
        "the settings in config that say how ranks communicate, each with its default: what tells the arms of a "
        "comparison apart",
        "always",
        since=4,
    ),
    Field(
        "side_settings",
        "list of str",
        "",
        "the settings in config that do not affect the training: where it writes, what it logs, when it saves",
        "always",
        since=4,
    ),
    # Speed: the first warmup_steps_excluded steps, profiled steps and steps with a sample are left out
    Field("step_time_ms_mean", "float", "ms", "optimiser step, mean"),
    Field("step_time_ms_p50", "float", "ms", "optimiser step, median"),
    Field("step_time_ms_p90", "float", "ms", "optimiser step, 90th percentile"),
    Field("step_time_ms_p95", "float", "ms", "optimiser step, 95th percentile"),
    Field("warmup_steps_excluded", "int", "steps", "first steps left out of all times but train_time_s"),
    Field("steps_timed", "int", "steps", "steps that the step times are of", since=2),
    Field("tokens_per_s", "float", "tokens/s", "all ranks' tokens of a step / mean step time"),
    Field(
        "flops_per_token",
        "float",
        "FLOP",
        "of the model's mathematics, forward and backward: 6 N + 12 L H Q T (docs/trainer/models.md)",
        nullable=True,
        since=2,
    ),
    Field(
        "peak_flops",
        "float",
        "FLOP/s",
        "most that a rank's device can do: a GPU's published dense bf16 rate, a CPU's measured one; null: not known",
        nullable=True,
        since=2,
    ),
    Field(
        "peak_flops_source",
        "published|measured|registers",
        "",
        "where peak_flops is from: published, the best matrix product measured, what registers multiply",
        nullable=True,
        since=2,
    ),
    Field(
        "mfu",
        "float",
        "0 to 1",
        "model FLOPs utilisation: tokens_per_s * flops_per_token / (world_size * peak_flops)",
        nullable=True,
        since=2,
    ),
    Field(
        "comm_time_ms_total",
        "float",
        "ms",
        "time in collectives, mean over the ranks, warm-up steps as the others; null where not all of it was measured: "
        "stock FSDP2 or DDP beside a divided model, messages of a pipeline",
        nullable=True,
    ),
    Field(
        "comm_ratio",
        "float",
        "0 to 1",
        "share of the step time spent in communication (not a compression ratio)",
        nullable=True,
    ),
    Field("comm_time_ms_by_op", "object of float", "ms", "comm_time_ms_total by collective", nullable=True),
    Field("comm_time_source", "ledger|profiler", "", "who measured the communication times", nullable=True),
    Field("compress_time_ms_total", "float", "ms", "time in encoding, counted like comm_time_ms_total", nullable=True),
    Field(
        "decompress_time_ms_total", "float", "ms", "time in decoding, counted like comm_time_ms_total", nullable=True
    ),
    Field("compress_time_ms", "float", "ms/step", "compress_time_ms_total / steps", nullable=True),
    Field("decompress_time_ms", "float", "ms/step", "decompress_time_ms_total / steps", nullable=True),
    Field(
        "extra_collectives",
        "int",
        "rounds",
        "rounds beyond those of an uncompressed collective (scales agreed first, second rounds), whole training",
        nullable=True,
        since=2,
    ),
    Field(
        "extra_collectives_time_ms_total",
        "float",
        "ms",
        "their part of comm_time_ms_total; of a collective's rounds those with the fewest bytes are the extra ones",
        nullable=True,
        since=2,
    ),
    Field(
        "extra_collective_time_ms",
        "float",
        "ms/step",
        "extra_collectives_time_ms_total / steps",
        nullable=True,
        since=2,
    ),
    Field(
        "effective_bw_raw_gbps",
        "float",
        "GB/s (1e9 bytes)",
        "bytes_raw_total / comm_time_ms_total: what an uncompressed exchange would need to take as long",
        nullable=True,
    ),
    Field(
        "effective_bw_compressed_gbps",
        "float",
        "GB/s (1e9 bytes)",
        "bytes_compressed_total / comm_time_ms_total: what a rank's link carried (each way) while it was waited for",
        nullable=True,
    ),
    Field(
        "overlap_ratio",
        "float",
        "0 to 1",
        "share of communication that compute hides in a profiled step, at least (docs/comparing/profiling.md)",
        nullable=True,
        since=2,
    ),
    Field(
        "exposed_comm_ms_per_step",
        "float",
        "ms",
        "communication that compute does not hide, of a profiled step (which is slower than others)",
        nullable=True,
        since=2,
    ),
    # Bytes: sent by one rank to others, mean over the ranks, whole training
    Field(
        "bytes_raw_total", "int", "bytes", "what the same exchanges would send uncompressed, in comm_dtype/param_dtype"
    ),
    Field("bytes_compressed_total", "int", "bytes", "what was sent, both directions (gradients and parameters)"),
    Field("bytes_raw_by_op", "object of int", "bytes", "bytes_raw_total by collective"),
    Field("bytes_compressed_by_op", "object of int", "bytes", "bytes_compressed_total by collective"),
    Field(
        "elements_by_op",
        "object of int",
        "elements",
        "elements behind bytes_raw_by_op: times 4 the fp32 baseline, times 2 the bf16 one",
        since=2,
    ),
    Field(
        "outer_bits",
        "float",
        "bits",
        "what R replicas exchange, a trained parameter and optimiser step: 8 x bytes of outer x R / (R - 1) / "
        "(parameters of a rank x steps); null without outer",
        "no",
    ),
    Field("value_bytes", "int", "bytes", "values among bytes_compressed_total", nullable=True),
    Field("index_bytes", "int", "bytes", "indices among bytes_compressed_total", nullable=True),
    Field("metadata_bytes", "int", "bytes", "scales, lengths, padding among bytes_compressed_total", nullable=True),
    Field("bytes_source", "counted|computed", "", "counted where sent, or computed from shapes (stock collectives)"),
    Field(
        "compression_ratio",
        "float",
        "raw / compressed",
        "all traffic, against the dtypes that FSDP2 handed over; null when nothing was sent",
        nullable=True,
    ),
    Field("compression_ratio_vs_fp32", "float", "fp32 / compressed", "all traffic, had it been fp32", nullable=True),
    Field("compression_ratio_vs_bf16", "float", "bf16 / compressed", "all traffic, had it been bf16", nullable=True),
    Field("compression_ratio_reduce_scatter", "float", "raw / compressed", "gradients alone", nullable=True),
    Field(
        "compression_ratio_reduce_scatter_vs_fp32",
        "float",
        "fp32 / compressed",
        "gradients alone, had they been fp32",
        nullable=True,
    ),
    Field(
        "compression_ratio_reduce_scatter_vs_bf16",
        "float",
        "bf16 / compressed",
        "gradients alone, had they been bf16",
        nullable=True,
    ),
    # Fidelity: means over grad_samples sampled steps (--grad_error_every); all units and ranks together.
    # c: the reduced gradient, g: the exact mean of the ranks' gradients of that step, without feedback's residuals
    Field("grad_samples", "int", "steps", "steps whose reduced gradient was compared with the exact one", since=2),
    Field("grad_rel_error", "float", "", "norm of c - g over norm of g; null when nothing was compared", nullable=True),
    Field("grad_cos_sim", "float", "-1 to 1", "cosine of c and g; null also when c is zero", nullable=True),
    Field(
        "residual_norm",
        "float",
        "",
        "norm of what the ranks kept back for later steps / norm of their gradients; 0 without feedback",
        nullable=True,
    ),
    Field(
        "density",
        "float",
        "0 to 1",
        "share of a unit's elements that a rank's message makes non-zero; 1 for methods that are not sparse",
        nullable=True,
    ),
    # Quality
    Field("nonfinite_steps", "int", "steps", "steps skipped because a gradient or the loss was not finite"),
    Field(
        "scaler_skipped_steps",
        "int",
        "steps",
        "steps skipped beside those because float16 overflowed with a loss scale above 1, which was then halved; null "
        "where no loss is scaled",
        "no",
    ),
    Field("loss_scale", "float", "", "what the last step's loss was multiplied by; null where no loss is scaled", "no"),
    Field(
        "clip_rate",
        "float",
        "0 to 1",
        "share of steps whose gradient norm was clipped; with outer those of the first replica",
        since=2,
    ),
    Field(
        "train_loss",
        "float",
        "nats/token",
        "training loss, mean over the last steps (a draft's: weighted sum; a masked model's: tokens and pairs)",
    ),
    Field("train_loss_by_position", "list of float", "nats/token", "a draft's: of each token ahead, unweighted", "no"),
    Field(
        "train_accuracy_by_position",
        "list of float",
        "0 to 1",
        "a draft's: its first choice is the target's, for each token ahead, the ones before given; the last steps",
        "no",
    ),
    Field(
        "tau",
        "float",
        "tokens",
        "the kept draft's acceptance length: tokens a pass of the target on held-out questions, greedy",
        "no",
    ),
    Field("tau_step", "int", "steps", "after which the kept draft was measured: the best of those measured", "no"),
    Field("tau_prompts", "int", "", "held-out questions that tau is over", "no"),
    Field(
        "features_read",
        "int",
        "conversations",
        "dealt to all ranks since the last start whose features were on disk (--features cached); online: null",
        "no",
    ),
    Field("features_computed", "int", "conversations", "those that the target looked at; such steps take longer", "no"),
    Field("features_gb", "float", "GB (1e9)", "of files in the features' folder at the end", "no"),
    Field("val_loss", "float", "nats/token", "validation loss; a masked model's: of masked tokens"),
    Field("val_ppl", "float", "", "exp(val_loss)"),
    Field(
        "val_accuracy",
        "float",
        "0 to 1",
        "top-1 accuracy: share of the tokens of val_loss that are the model's first choice; null in older rows",
        "no",
    ),
    Field("val_tokens", "int", "tokens", "tokens that val_loss is a mean of"),
    Field("val_next_sentence_loss", "float", "nats/pair", "a masked model's: does the second segment follow?", "no"),
    Field("val_next_sentence_accuracy", "float", "0 to 1", "a masked model's: pairs of segments told rightly", "no"),
    Field("eval_weights", "str", "", "what was evaluated: the fp32 shards, or replicas as gathered (compressed)"),
    Field("reached_target", "bool", "", "did an evaluation reach target_ppl? null without a target", nullable=True),
    Field("steps_to_target_ppl", "int", "steps", "before the first evaluation that did; null: a miss", nullable=True),
    Field("time_to_target_ppl_s", "float", "s", "time in optimiser steps before it, as train_time_s", nullable=True),
    Field(
        "ppl_at_fixed_time",
        "float",
        "",
        "validation PPL at the first step's end after ppl_at_s seconds of training; null: it ended before",
        nullable=True,
    ),
    Field("loss_curve", "str", "", "curve file, seen from the folder of the results file", "no"),
    # Checkpoints: null where none was wanted
    Field("resumed_at_steps", "list of int", "steps", "after which the run was resumed from a checkpoint", "no"),
    Field("saves", "int", "", "checkpoints saved, whole training", "no"),
    Field("failed_saves", "int", "", "checkpoints that could not be saved, whole training", "no"),
    Field("saved_step", "int", "", "step of the newest checkpoint", "no"),
    Field("save_exposed_s", "float", "s", "that training stood still for saves; not in train_time_s", "no"),
    # Cost
    Field("wall_time_s", "float", "s", "from the start of the program to this row"),
    Field("time_to_first_step_s", "float", "s", "from the program's start to the end of its first step", "no"),
    Field("train_time_s", "float", "s", "in optimiser steps, all of them; what sampling took is left out"),
    Field("feedback_bytes", "int", "bytes", "memory of residuals and other compressor state per rank", nullable=True),
    Field(
        "outer_bytes",
        "int",
        "bytes",
        "memory per rank of the weights that replicas last agreed on, of the outer step's momentum and of gradients "
        "that are added up; null without outer",
        "no",
    ),
    Field("peak_rss_gb", "float", "GB (1e9)", "largest resident memory of a rank (virtual ranks: of all together)"),
    Field("mem_peak_alloc_gb", "float", "GB (1e9)", "largest CUDA memory of a rank in tensors; CPU: peak_rss_gb"),
    Field(
        "mem_peak_reserved_gb",
        "float",
        "GB (1e9)",
        "largest CUDA memory that a rank's allocator held; CPU: peak_rss_gb",
        since=2,
    ),
    # Link: where experiments.links or the like emulated a network; null elsewhere
    Field("link_rate_asked", "float", "bit/s", "what a node was allowed to send; null without a limit", "no"),
    Field("link_rate_measured", "float", "bit/s", "what a TCP stream got between two nodes before the run", "no"),
    Field("link_delay_ms", "float", "ms", "latency added one way", "no"),
    Field(
        "interface_bytes_total",
        "int",
        "bytes",
        "sent by the network interface over interface_steps, headers included, mean over the ranks",
        "no",
    ),
    Field("interface_steps", "int", "steps", "training steps that interface_bytes_total counts, nothing else", "no"),
    Field(
        "bytes_trusted",
        "bool",
        "",
        "is the interface's payload within 1 % of what we say was sent? null where nobody can tell "
        "(docs/comparing/links.md)",
        "no",
    ),
    # Where it ran
    Field("git_commit", "str", "", "commit of the source checkout; null when installed", "no"),
    Field("git_dirty", "bool", "", "whether the checkout had uncommitted changes", "no"),
    Field("versions", "object", "", "python, torch, ... by name", "no"),
    Field("hardware", "object", "", "cpu, cores, ram_gb, gpus, host (a hash, not the name)", "no"),
    Field("torchrun", "object", "", "what the launcher said: run id, restarts, node layout; null without it", "no"),
    Field(
        "injected_fault",
        "str",
        "",
        "what was broken on purpose (docs/trainer/faults.md): no measurement; else null",
        "no",
    ),
    Field("nonfinite_fields", "list of str", "", "fields that were NaN or infinite and are null here", "no"),
)
BY_NAME = {field.name: field for field in FIELDS}
TIMES = (
    "step_time_ms_mean",
    "step_time_ms_p50",
    "step_time_ms_p90",
    "step_time_ms_p95",
    "warmup_steps_excluded",
    "steps_timed",
    "tokens_per_s",
    "peak_flops",
    "peak_flops_source",
    "mfu",
    "comm_time_ms_total",
    "comm_ratio",
    "comm_time_ms_by_op",
    "comm_time_source",
    "compress_time_ms_total",
    "decompress_time_ms_total",
    "compress_time_ms",
    "decompress_time_ms",
    "extra_collectives_time_ms_total",
    "extra_collective_time_ms",
    "effective_bw_raw_gbps",
    "effective_bw_compressed_gbps",
    "overlap_ratio",
    "exposed_comm_ms_per_step",
    "time_to_target_ppl_s",
    "ppl_at_fixed_time",
    "train_time_s",
)
"""Fields about a rank's time, which are null where one process played all ranks."""
PERPLEXITY = ("val_loss", "val_ppl", "val_tokens", "eval_weights")
"""Fields that a draft's training does not measure."""
