"""The groups of a training run's settings: every flag of ``fsdp_lab.train``, its default and what it means.

A field here is the flag of the same name and the YAML key of the same name (``cli.py`` reads both).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fsdp_lab.settings.operators import WORDS, complaints_about
from fsdp_lab.settings.reading import method_flags
from fsdp_lab.settings.reading.fields import ConfigError, Settings, setting
from fsdp_lab.settings.reading.specs import specs_of

_SAFE_NAME = (r"[A-Za-z0-9][A-Za-z0-9._+=,@-]{0,127}", "letters, digits and ._+=,@- only (it names a folder)")
_TRACKER = "(tensorboard|wandb|mlflow|trackio)"
_TRACKERS = (rf"{_TRACKER}( *, *{_TRACKER})*", "one or more of tensorboard, wandb, mlflow, trackio, by commas")
_SHARE = r"(?=[0-9.]*[1-9])[0-9]{1,9}(\.[0-9]{1,9})?"
_SHARES = (rf"{_SHARE}( *, *{_SHARE})*", "numbers above 0, one for each of the ranks, by commas: 3,1")

_LAYERS = (r"[A-Za-z0-9_.-]+( *, *[A-Za-z0-9_.-]+)*", "one or more names of layers, by commas, or all-linear")


BETWEEN_REPLICAS = ("demo", "onebit_adam", "dion", "ef21_muon", "zero_one_adam")
"""Optimizers that exchange something of their own between the replicas of a model, instead of gradients."""


@dataclass(frozen=True)
class DataConfig(Settings):
    """Which text the run trains on, and how it becomes batches."""

    data_path: str | None = setting(
        None,
        "JSON array or JSON lines of {id, title, text}, also .gz; none: the embedded Wikipedia corpus",
        exists=("file",),
    )
    data_format: str = setting(
        "documents",
        "what data_path holds: documents, of which all tokens are predicted, or conversations (JSON lines in "
        "ShareGPT's or OpenAI's format, also .gz), of which the assistant's answers are (docs/instruction-tuning.md)",
        choices=("documents", "conversations"),
    )
    data_mix: dict[str, Any] = setting(  # noqa: RUF009 - a new dict each
        {},
        "several corpora in place of data_path, {path: weight}, weights as shares of tokens; a path is a file as "
        "data_path takes, a folder of token shards, or the word embedded",
    )
    shuffle_documents: int = setting(16384, "data_mix: documents of a source that are shuffled at a time", at_least=1)
    shuffle_rows: int = setting(1024, "data_mix: packed sequences that are shuffled at a time", at_least=1)
    data_prefetch: int = setting(
        4, "data_mix: batches read ahead in the background", at_least=1, affects_training=False
    )
    max_length: int | None = setting(None, "tokens in a sequence; none: the preset's", at_least=2)
    val_fraction: float = setting(0.02, "share of the corpus held out for validation", above=0, below=1)
    cache_dir: str | None = setting(
        None, "folder for tokenised data; none: one in the user's cache", affects_training=False
    )


@dataclass(frozen=True)
class ModelConfig(Settings):
    """Which model, and the arithmetic it runs in."""

    model: str | None = setting(
        None,
        "preset (gpt2-nano, gpt2, qwen3-0.6b, llama-3.2-1b, ...: docs/models.md); none: gpt2-nano without a GPU, "
        "gpt2-62m with one",
    )
    model_dir: str | None = setting(
        None, "Hugging Face folder of a GPT-2, Qwen2, Qwen3, Llama, MiniCPM or BERT to start from", exists=("folder",)
    )
    vocab_size: int | None = setting(
        None,
        "ids of GPT-2's tokenizer to train with: fewer keep its first merges only; none: the preset's (gpt2-mini, "
        "llama-mini: 4096), else all 50257",
        at_least=257,
        at_most=50257,
    )
    trust_pickle: bool = setting(
        False,
        "also read model_dir's weights from pickles (.bin), which can run code; otherwise only safetensors",
        affects_training=False,
    )
    mixed_precision: str = setting(
        "auto",
        "dtype of forward and backward; auto: bf16 on a GPU, no otherwise; fp16: with loss scaling (docs/models.md)",
        choices=("auto", "no", "bf16", "fp16"),
    )
    attention: str = setting(
        "sdpa",
        "attention kernel: torch's own, FlashAttention 2 (needs flash-attn), FlexAttention, or plain matrices",
        choices=("sdpa", "flash", "flex", "eager"),
    )
    operators: dict[str, Any] = setting(  # noqa: RUF009 - a new dict each
        {},
        "what computes each operator, {operator: implementation}, with others for those that are not named; or a word "
        "for all: naive, best (docs/operators.md)",
        others=WORDS,
    )
    activation_checkpointing: bool = setting(
        False, "compute each block's activations again in backward instead of keeping them"
    )
    compile: bool = setting(False, "compile the model's blocks with torch.compile")
    cpu_offload: bool = setting(
        False,
        "keep each rank's parameters, gradients and optimiser state in the CPU's memory (FSDP2's CPUOffloadPolicy)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if complaints := complaints_about(self, self.mixed_precision):
            raise ConfigError(complaints)
        operators = {name: asked for name, asked in self.operators.items() if (name, asked) != ("others", "default")}
        if "precision" in operators:  # one setting with two names, of which everyone reads the other
            precision = operators.pop("precision")
            object.__setattr__(self, "mixed_precision", "no" if precision == "fp32" else precision)
        object.__setattr__(self, "operators", operators)


@dataclass(frozen=True)
class LoraConfig(Settings):
    """LoRA (arXiv 2106.09685): adapters of low rank are trained, the model's own weights stay as they are."""

    lora_rank: int | None = setting(
        None, "train LoRA adapters of this rank, and nothing else (docs/lora.md); none: train all weights", at_least=1
    )
    lora_alpha: float | None = setting(
        None,
        "scale of the adapters: lora_alpha / lora_rank times what they give is added; none: twice the rank",
        above=0,
    )
    lora_dropout: float = setting(0.0, "share of the adapters' inputs that training drops", at_least=0, below=1)
    lora_targets: str | None = setting(
        None,
        "layers of every block that get adapters, by commas (c_attn; q_proj,v_proj), or all-linear; none: those that "
        "make queries and values",
        pattern=_LAYERS,
    )


@dataclass(frozen=True)
class OptimConfig(Settings):
    """The optimizer, its schedule, and how much data one step sees."""

    batch_size: int | None = setting(None, "sequences per rank and micro-batch; none: the preset's", at_least=1)
    gradient_accumulation_steps: int = setting(1, "micro-batches per optimiser step", at_least=1)
    optimizer: str = setting(
        "adamw",
        "adamw; muon orthogonalises the updates of the blocks' matrices, for which ranks gather these, and leaves the "
        "rest to AdamW (docs/muon.md); of dp_replicas, which then exchange something else than gradients: demo, "
        "onebit_adam, dion, ef21_muon, zero_one_adam (docs/optimizers.md)",
        choices=("adamw", "muon", *BETWEEN_REPLICAS),
    )
    learning_rate: float | None = setting(None, "peak learning rate; none: the preset's", above=0)
    min_learning_rate_ratio: float = setting(0.1, "final learning rate as a share of the peak", at_least=0, at_most=1)
    weight_decay: float = setting(0.1, "decoupled weight decay of matrices", at_least=0)
    adam_beta1: float = setting(0.9, "decay of AdamW's first moment", at_least=0, below=1)
    adam_beta2: float = setting(0.95, "decay of AdamW's second moment", at_least=0, below=1)
    muon_momentum: float | None = setting(
        None, "muon, ef21_muon: decay of the momentum; none: 0.95", at_least=0, below=1
    )
    demo_decay: float | None = setting(
        None, "demo: what a step keeps of each replica's momentum; none: 0.999", at_least=0, below=1
    )
    adam_freeze_after: int | None = setting(
        None,
        "onebit_adam, zero_one_adam: optimiser steps after which Adam's variance stays as it is (until then "
        "onebit_adam is plain Adam); none: warmup_steps",
        at_least=1,
    )
    adam_variance_scaler: int | None = setting(
        None,
        "zero_one_adam: after so many updates of the variance the steps between two of them double; none: 16",
        at_least=1,
    )
    adam_local_scaler: int | None = setting(
        None,
        "zero_one_adam: after so many steps beyond adam_freeze_after the steps between two synchronisations double; "
        "none: 32678",
        at_least=1,
    )
    adam_local_steps: int | None = setting(
        None, "zero_one_adam: most steps between two synchronisations; none: 16", at_least=1
    )
    dion_rank: float | None = setting(
        None, "dion: rank of an update, as a share of the matrix's shorter side; none: 0.25", above=0, at_most=1
    )
    dion_learning_rate: float | None = setting(
        None, "dion: peak learning rate of the blocks' matrices; the rest has learning_rate; none: 0.02", above=0
    )
    dion_momentum: float | None = setting(
        None, "dion: what a step keeps of the part of a momentum that it used; none: 0.95", at_least=0, below=1
    )
    max_grad_norm: float = setting(1.0, "clip the global gradient norm to this; 0: no clipping", at_least=0)
    warmup_steps: int | None = setting(None, "optimiser steps of linear warm-up; none: the preset's", at_least=0)
    num_epochs: int | None = setting(None, "passes over the training split; none: 1", at_least=1)
    max_steps: int | None = setting(
        None, "stop after this many optimiser steps; none: the preset's, or after num_epochs if given", at_least=1
    )

    @property
    def is_between_replicas(self) -> bool:
        """Do replicas exchange what this optimizer says, and reduce no gradients?"""
        return self.optimizer in BETWEEN_REPLICAS


@dataclass(frozen=True)
class ParallelConfig(Settings):
    """How the ranks share the work: pp x dp x tp of them (docs/layouts.md)."""

    dp: int = setting(0, "data-parallel ranks, each with batches of its own; 0: all that tp and pp leave", at_least=0)
    dp_replicas: int = setting(
        1,
        "copies of the weights that the data-parallel ranks keep: 1 shards one over all of them (FSDP2), dp keeps one "
        "on each (DDP), a number between them shards each copy (HSDP)",
        at_least=1,
    )
    tp: int = setting(1, "ranks that every block is divided over, as layout says", at_least=1)
    layout: str = setting(
        "tp",
        "what the tp ranks divide: heads and columns (tp), positions (sp), or both in turn (galaxy, galaxy2)",
        choices=("tp", "sp", "galaxy", "galaxy2"),
    )
    shares: str | None = setting(
        None,
        "how much of heads, columns, words and positions each tp rank takes: 3,1; of a pipeline without tp how many "
        "blocks each stage has; none: equal parts",
        pattern=_SHARES,
        numbers=True,
    )
    pp: int = setting(1, "ranks of a pipeline, each with some consecutive blocks", at_least=1)
    pp_schedule: str = setting(
        "1f1b", "order of a pipeline's micro-batches", choices=("gpipe", "1f1b", "interleaved", "zbv")
    )
    pp_micro_batches: int = setting(
        0, "micro-batches that a pipeline divides a batch into; 0: one for each sequence, at most 4 a rank", at_least=0
    )

    @property
    def is_divided(self) -> bool:
        """Is the model divided over ranks, beside FSDP2's shards of its weights?"""
        return self.tp > 1 or self.pp > 1

    @property
    def share_list(self) -> list[float]:
        """The shares of the tp ranks, or of the stages of a pipeline without these: one number each."""
        shared = self.tp if self.tp > 1 else self.pp
        return [float(share) for share in self.shares.split(",")] if self.shares else [1.0] * shared


@dataclass(frozen=True)
class CommConfig(Settings):
    """What is compressed on its way between ranks, and how."""

    comm_compress: str = setting(
        "none",
        'gradient compression method, also with settings, "topk ratio=0.01", and with the parameters\' method, "int4 '
        'hadamard + delta" (none: stock FSDP2, no hook at all)',
        also="method",
        method=True,
    )
    comm_config_json: dict[str, Any] = setting({}, "the method's own settings")  # noqa: RUF009 - a new dict each
    param_compress: str = setting("none", "compression method of the parameter all-gather", method=True)
    param_config_json: dict[str, Any] = setting({}, "the parameter method's own settings")  # noqa: RUF009
    replica_compress: str = setting(
        "none",
        "dp_replicas with several ranks each (HSDP): compression method of the gradients' sum between replicas (none: "
        "that of comm_compress, inside of a replica and between them)",
        method=True,
    )
    comm_dtype: str = setting("fp32", "dtype that FSDP2 reduces gradients in", choices=("fp32", "bf16", "fp16"))
    fsdp_prefetch: int = setting(
        1, "CPU: gather the parameters of so many blocks ahead while one computes, also with none", at_least=0
    )
    fsdp_overlap_reduce: int = setting(
        2,
        "CPU: let the compressed reduce-scatters of so many blocks be under way while backward goes on (0: it waits "
        "for each)",
        at_least=0,
    )
    fsdp_reshard: bool = setting(True, "free the full parameters after forward, gather them again for backward")
    activation: str = setting(
        "none",
        "tp, pp: compression method of the activations that ranks exchange (none: torch's own collectives)",
        method=True,
    )
    activation_grad: str = setting(
        "none", "tp, pp: compression method of the gradients of these activations", method=True
    )
    optimizer_compress: str = setting(
        "none",
        "muon: compression method of the updates that ranks gather (none: as they are, in bfloat16, which loses "
        "nothing); demo, onebit_adam, ef21_muon, zero_one_adam: of what replicas exchange in place of gradients, to be "
        'given (their papers\': dct, signsgd, "topk ratio=0.1 values=nc", signsgd)',
        method=True,
    )
    optimizer_gather: str = setting(
        "none",
        "ef21_muon: compression method of the weights' moves on their way back from who keeps them (none: the weights, "
        "exactly)",
        method=True,
    )
    optimizer_exchange: str = setting(
        "auto",
        "muon: every rank's updates to all others (all_gather), or to one owner of each matrix, which alone works on "
        "it (owners); auto: the one that sends fewer bytes, where the numbers are the same",
        choices=("auto", "all_gather", "owners"),
    )
    optimizer_until_freeze: str = setting(
        "moves",
        "zero_one_adam: what replicas exchange by optimizer_compress until Adam's variance stays as it is: how far "
        "each has gone (moves, as its paper), or gradients, which enter the momentum (as its public code)",
        choices=("moves", "gradients"),
    )
    outer: str = setting(
        "none",
        "local steps: each replica (dp_replicas, or virtual_ranks) trains by itself, and they synchronise now and "
        "then, by their mean (local_sgd) or by an outer step with Nesterov momentum (diloco)",
        choices=("none", "local_sgd", "diloco"),
    )
    outer_every: int = setting(30, "outer: optimiser steps between two synchronisations", at_least=1)
    outer_compress: str = setting(
        "none",
        "outer: compression method of what a replica has learnt since the last one (none: torch's own all-reduce)",
        method=True,
    )
    outer_gather: str = setting(
        "none", "outer: compression method of the mean on its way back to the replicas (none: exact)", method=True
    )
    outer_exchange: str = setting(
        "auto",
        "outer: by way of each part's owner (reduce_scatter), or every replica's whole message to all others "
        "(all_gather); auto: the one that sends fewer bytes, as the numbers are the same",
        choices=("auto", "reduce_scatter", "all_gather"),
    )
    outer_learning_rate: float | None = setting(
        None, "outer: rate of the outer step; none: 1 for local_sgd, 0.7 for diloco", above=0
    )
    outer_momentum: float | None = setting(
        None, "outer: Nesterov momentum of diloco's outer step; none: 0.9", at_least=0, below=1
    )
    outer_fragments: int = setting(
        1,
        "outer: parts of the model that are synchronised in turn, each every outer_every steps",
        at_least=1,
    )
    outer_overlap: int = setting(
        0, "outer: optimiser steps between the sending of a part and its use, while replicas train on", at_least=0
    )
    outer_mixing: float = setting(
        0.0, "outer_overlap: share of a replica's own weights in those that it goes on with", at_least=0, below=1
    )
    outer_by_gradient: str = setting(
        "none",
        "outer: parameters that a replica does not move by itself, but by the mean of all replicas' gradients: "
        "embeddings and what predicts tokens (embeddings), or nothing",
        choices=("none", "embeddings"),
    )
    outer_gradient_every: int | None = setting(
        None, "outer_by_gradient: optimiser steps between two such means; none: outer_every", at_least=1
    )
    outer_gradient_rate: float | None = setting(
        None,
        "outer_by_gradient: their learning rate, in multiples of learning_rate; none: the square root of those steps",
        above=0,
    )
    fsdp_keep_frozen: bool = setting(
        False, "lora_rank: send the model's own weights once, exactly, and keep them whole on every rank"
    )
    system: str = setting(
        "none",
        "a published system whose settings of communication are meant (sdp4bit, zero++, diloco, ...: fsdp-lab "
        "systems); what is given beside it must not contradict it",
    )

    @property
    def outer_step(self) -> tuple[float, float]:
        """Rate and momentum of the outer step: those of the kind of local steps where no flag says another."""
        rate, momentum = (0.7, 0.9) if self.outer == "diloco" else (1.0, 0.0)
        return (
            rate if self.outer_learning_rate is None else self.outer_learning_rate,
            momentum if self.outer_momentum is None else self.outer_momentum,
        )

    @property
    def rate_by_gradient(self) -> float:
        """What goes by its gradients learns so many times as fast: Adam's rate grows with the root of the batch."""
        steps = self.outer_gradient_every or self.outer_every
        return math.sqrt(steps) if self.outer_gradient_rate is None else self.outer_gradient_rate

    @classmethod
    def said(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Labels taken apart: the methods' names stay in comm_compress and param_compress, settings go beside them.

        A system is replaced by its settings: ``system`` itself is none in every group that was built.
        """
        separate, complaints = method_flags.spelled_out(values)
        if complaints:
            raise ConfigError(complaints)
        return separate

    def __post_init__(self) -> None:
        given = {spec.name: getattr(self, spec.name) for spec in specs_of(type(self))}
        changed = {spec.name for spec in specs_of(type(self)) if given[spec.name] != spec.default}
        for name, value in self.said({name: given[name] for name in changed}).items():
            object.__setattr__(self, name, value)
        if isinstance(self.system, str):  # else the check of types refuses it
            object.__setattr__(self, "system", "none")
        super().__post_init__()


@dataclass(frozen=True)
class RunConfig(Settings):
    """Where the run writes, how often it looks up, and when it gives up."""

    output_dir: str = setting("fsdp_output", "folder for logs, checkpoints and models", affects_training=False)
    results_path: str = setting("results/results.jsonl", "file that gets one row per run", affects_training=False)
    run_name: str | None = setting(
        None, "name of the run; none: made of method, model and time", affects_training=False, pattern=_SAFE_NAME
    )
    seed: int = setting(42, "seed of initialisation, data order and stochastic rounding", at_least=0, at_most=2**32 - 1)
    log_interval: int = setting(10, "optimiser steps between log lines", at_least=1, affects_training=False)
    eval_steps: int = setting(0, "optimiser steps between evaluations; 0: only at the end", at_least=0)
    target_ppl: float | None = setting(
        None,
        "record when an evaluation first reaches this perplexity (give eval_steps: only evaluations can tell)",
        above=1,
        affects_training=False,
    )
    ppl_at_s: float | None = setting(
        None, "evaluate once after so many seconds of training (steps alone)", above=0, affects_training=False
    )
    grad_error_every: int = setting(
        50,
        "optimiser steps between comparisons of the compressed gradient with the exact one (not timed); 0: never",
        at_least=0,
        affects_training=False,
    )
    curves_dir: str | None = setting(
        None, "folder for the run's loss curve; none: the run's own in output_dir", affects_training=False
    )
    profile: bool = setting(
        False, "record a torch.profiler trace of some steps, and say where their time went", affects_training=False
    )
    profile_steps: int = setting(5, "steps in the profile", at_least=1, affects_training=False)
    max_nonfinite_steps: int = setting(
        10,
        "give up after this many skipped steps (NaN or Inf) in a row; fp16's do not count until its scale is 1",
        at_least=1,
    )
    timeout_s: int = setting(300, "seconds that a rank waits for the others", at_least=1, affects_training=False)
    hang_timeout_s: int = setting(
        0,
        "after the first step, seconds without progress after which the run ends and names the rank that hangs (more "
        "than a step takes, and less than timeout_s); 0: only timeout_s",
        at_least=0,
        affects_training=False,
    )
    stop_grace_s: int = setting(
        20,
        "seconds that a signal to stop may go unheeded, because ranks hang, before the run is recorded and ended",
        at_least=0,
        affects_training=False,
    )
    save_steps: int = setting(
        0, "optimiser steps between checkpoints; 0: none but save_on_stop's", at_least=0, affects_training=False
    )
    save_on_stop: bool = setting(
        True, "save a checkpoint when told to stop (SIGTERM and the like)", affects_training=False
    )
    keep_checkpoints: int = setting(2, "newest checkpoints to keep", at_least=1, affects_training=False)
    resume: str = setting(
        "auto",
        "auto: go on with an unfinished run of this name that has checkpoints; never; or the folder of a checkpoint",
        affects_training=False,
        exists=("folder", "auto", "never"),
    )
    resume_resharded: bool = setting(
        False, "resume on another number of ranks: not bit for bit (docs/checkpoints.md)", affects_training=False
    )
    resume_changed: bool = setting(
        False, "resume although settings that affect the training have changed", affects_training=False
    )
    tensorboard: bool = setting(
        True, "write TensorBoard events (and let the script serve them)", affects_training=False
    )
    trackers: str | None = setting(
        None,
        "where the run's numbers also go: wandb, mlflow, trackio, by commas (docs/trackers.md); tensorboard may be "
        "named too, and --tensorboard says whether it is written",
        affects_training=False,
        pattern=_TRACKERS,
    )
    save_model: bool = setting(True, "save the trained model in output_dir", affects_training=False)
    virtual_ranks: int = setting(
        0, "train as so many ranks would, all of them played by this one process; 0: real ranks", at_least=0
    )
    threads: int = setting(0, "CPU threads per rank; 0: cores / ranks on the machine", at_least=0)

    @property
    def tracker_names(self) -> tuple[str, ...]:
        """The run's trackers, each once: TensorBoard as ``tensorboard`` says, then the others as they are named."""
        named = [name.strip() for name in (self.trackers or "").split(",") if name.strip()]
        others = [name for name in dict.fromkeys(named) if name != "tensorboard"]
        return (*(("tensorboard",) if self.tensorboard else ()), *others)
