"""The settings of a draft's training: the trainer's own groups with other defaults, and the group of the draft."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsdp_lab.settings.config import row_of
from fsdp_lab.settings.groups import CommConfig, OptimConfig, ParallelConfig, RunConfig
from fsdp_lab.settings.reading.fields import Config, ConfigError, Settings, setting


@dataclass(frozen=True)
class EagleSettings(Settings):
    """Which draft, of what target, on what, and how it is judged."""

    target_dir: str | None = setting(None, "folder of the target model", exists=("folder",))
    data_path: str | None = setting(
        None, "JSON lines of conversations, best with answers of the target's own", exists=("file",)
    )
    draft_dir: str | None = setting(None, "folder of a draft to go on from, with its vocabulary", exists=("folder",))
    draft_vocab_size: int = setting(16000, "tokens that the draft knows (at most the target's)", at_least=1)
    max_length: int = setting(2048, "tokens of a conversation that are kept", at_least=4)
    steps_ahead: int = setting(7, "length of the training-time test", at_least=1)
    step_decay: float = setting(0.8, "each further step's loss counts by this factor less", above=0, at_most=1)
    dtype: str = setting("fp32", "dtype of target and draft's arithmetic", choices=("fp32", "bf16"))
    shard_target: bool = setting(False, "shard the target's blocks too")
    features: str = setting(
        "online",
        "online: the target looks at every batch; cached: at each conversation alone, and what it saw is kept on disk",
        choices=("online", "cached"),
    )
    features_dir: str | None = setting(
        None, "folder of what is cached, of one run or many; none: features in output_dir", affects_training=False
    )
    features_gb: float = setting(20.0, "GB (1e9) of files in it at most", above=0, affects_training=False)
    eval_data: str | None = setting(
        None,
        "JSON lines of held-out conversations: the draft that decodes them in the fewest passes is kept",
        exists=("file",),
    )
    eval_prompts: int = setting(16, "first questions of eval_data that are answered", at_least=1)
    eval_max_new_tokens: int = setting(64, "tokens of such an answer at most", at_least=2)
    num_drafts: int = setting(4, "tokens drafted a pass of the target, in these answers", at_least=1)


@dataclass(frozen=True)
class DraftOptimConfig(OptimConfig):
    """AdamW, its schedule, and how much data one step sees."""

    batch_size: int = setting(4, "conversations per rank and micro-batch", at_least=1)
    learning_rate: float = setting(1e-4, "peak learning rate", above=0)
    min_learning_rate_ratio: float = setting(0.0, "final learning rate as a share of the peak", at_least=0, at_most=1)
    weight_decay: float = setting(0.0, "AdamW's decoupled weight decay", at_least=0)
    max_grad_norm: float = setting(0.5, "clip the global gradient norm to this; 0: no clipping", at_least=0)
    warmup_steps: int | None = setting(
        None, "optimiser steps of linear warm-up; none: warmup_ratio of all steps", at_least=0
    )
    num_epochs: int | None = setting(None, "passes over the conversations; none: max_steps", at_least=1)
    max_steps: int | None = setting(
        None, "stop after this many optimiser steps; none: 1000, or after num_epochs if given", at_least=1
    )
    warmup_ratio: float = setting(0.015, "share of the steps with a rising rate", at_least=0, below=1)


@dataclass(frozen=True)
class DraftCommConfig(CommConfig):
    """What is compressed on its way between ranks, and how."""

    fsdp_reshard: bool = setting(True, "shard_target: free a block's parameters after forward")
    fsdp_keep_frozen: bool = setting(False, "for language models with adapters alone: a draft refuses it")


@dataclass(frozen=True)
class DraftRunConfig(RunConfig):
    """Where the run writes, how often it looks up, and when it gives up."""

    output_dir: str = setting(
        "eagle_output", "folder for the draft, its vocabulary, logs and checkpoints", affects_training=False
    )
    eval_steps: int = setting(
        0, "optimiser steps between measurements of the acceptance length; 0: only at the end", at_least=0
    )
    save_model: bool = setting(True, "save the draft in output_dir", affects_training=False)


@dataclass(frozen=True)
class EagleConfig(Config):
    """All settings of one training of a draft."""

    eagle: EagleSettings = field(default_factory=EagleSettings)
    optim: DraftOptimConfig = field(default_factory=DraftOptimConfig)
    comm: DraftCommConfig = field(default_factory=DraftCommConfig)
    run: DraftRunConfig = field(default_factory=DraftRunConfig)

    @property
    def parallel(self) -> ParallelConfig:
        """Drafts are trained by data-parallel ranks alone."""
        return ParallelConfig()

    @property
    def trained(self) -> str:
        """What is trained: a draft of the target's folder."""
        return f"draft-of-{Path(str(self.eagle.target_dir)).resolve().name}"

    @property
    def program(self) -> str:
        """Which module trains with these settings."""
        return "fsdp_lab.eagle.train"

    def conflicts(self) -> list[str]:
        """Complaints about settings that are missing, and about settings that a draft cannot use."""
        return _conflicts(self)

    @classmethod
    def foreign(cls) -> dict[str, str]:
        """Flags of language models that a draft does not have, by how they begin."""
        return {"lora_": "a draft is small and is trained whole, without adapters; leave it out"}

    def row(self) -> dict[str, Any]:
        """What a results row says of the settings; ``draft_target`` tells that no language model was trained."""
        own = {"model": self.trained, "draft_target": self.eagle.target_dir, "max_length": self.eagle.max_length}
        return {**own, **row_of(self)}


def check(config: EagleConfig) -> None:
    """Raises ConfigError for settings that are missing, and for settings that a draft cannot use."""
    if complaints := config.conflicts():
        raise ConfigError(complaints)


def _conflicts(config: EagleConfig) -> list[str]:
    eagle, run = config.eagle, config.run
    wrong = {
        "target_dir: missing; give the target's folder": eagle.target_dir is None,
        "data_path: missing; give a file of conversations": eagle.data_path is None,
        "activation, activation_grad: the ranks of a draft exchange no activations; leave it out": (
            config.comm.activation != "none" or config.comm.activation_grad != "none"
        ),
        "optimizer: a draft is trained by adamw; leave it out": config.optim.optimizer != "adamw",
        "outer: the ranks of a draft take every step together; leave it out": config.comm.outer != "none",
        "eval_steps: nothing to measure on; give eval_data": run.eval_steps > 0 and eagle.eval_data is None,
        "param_compress: would round the frozen target's parameters too; leave it with shard_target": (
            eagle.shard_target and config.comm.param_compress != "none"
        ),
        "fsdp_keep_frozen: every rank would keep the target whole, which shard_target divides; leave it out": (
            config.comm.fsdp_keep_frozen
        ),
        "features: cached: each rank runs the target when it has to, but ranks that share it (shard_target) must run "
        "it together; leave one of the two out": (eagle.shard_target and eagle.features == "cached"),
        "virtual_ranks: a draft is trained by real ranks; leave it out": run.virtual_ranks != 0,
        "target_ppl, ppl_at_s: a draft has no perplexity; leave them out": (run.target_ppl, run.ppl_at_s)
        != (None, None),
    }
    return [complaint for complaint, is_so in wrong.items() if is_so]
