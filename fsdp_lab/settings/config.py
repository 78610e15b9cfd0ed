"""All settings of a training run: the groups of `groups` together, and what a results row says of them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from fsdp_lab.settings import adapters
from fsdp_lab.settings.conflicts.all_groups import conflicts
from fsdp_lab.settings.groups import (
    CommConfig,
    DataConfig,
    LoraConfig,
    ModelConfig,
    OptimConfig,
    ParallelConfig,
    RunConfig,
)
from fsdp_lab.settings.reading.cli import parse_as
from fsdp_lab.settings.reading.fields import Config
from fsdp_lab.settings.reading.specs import Spec, specs_of


class AnyTraining(Protocol):
    """What every run needs of its settings, whatever it trains: a `Config` with these groups."""

    @property
    def optim(self) -> OptimConfig:
        """The settings of the optimiser, and of how much data one step sees."""
        ...

    @property
    def comm(self) -> CommConfig:
        """The settings of the compression between ranks."""
        ...

    @property
    def run(self) -> RunConfig:
        """The settings of where the run writes, and when it evaluates, saves and gives up."""
        ...

    @property
    def parallel(self) -> ParallelConfig:
        """The settings of how the ranks share the work."""
        ...

    @property
    def trained(self) -> str:
        """The name of what is trained, from which a run without a name gets one."""
        ...

    @property
    def program(self) -> str:
        """The module that trains with these settings; its messages begin with this name."""
        ...

    def row(self) -> dict[str, Any]:
        """The fields of a results row that say what the settings were."""
        ...

    @classmethod
    def specs(cls) -> dict[str, Spec]:
        """Every setting by the name of its flag, as in `Config.specs`."""
        ...

    def resolved(self) -> dict[str, Any]:
        """Every setting with its value, as in `Config.resolved`."""
        ...

    def to_yaml(self) -> str:
        """The settings as YAML text, as in `Config.to_yaml`."""
        ...

    def digest(self) -> str:
        """The sha256 of the settings that affect the training, as in `Config.digest`."""
        ...


@dataclass(frozen=True)
class TrainConfig(Config):
    """All settings of one training run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    comm: CommConfig = field(default_factory=CommConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @property
    def trained(self) -> str:
        """The model's preset, or the name of its folder."""
        return Path(self.model.model_dir).name if self.model.model_dir else str(self.model.model)

    @property
    def program(self) -> str:
        """The module that trains with these settings."""
        return "fsdp_lab.train"

    def conflicts(self) -> list[str]:
        """Complaints about settings that exclude each other."""
        return conflicts(self)

    def tokens_per_step(self, world: int) -> int:
        """How many tokens ``world`` data-parallel ranks train on in one optimizer step; settings must be resolved."""
        assert self.optim.batch_size is not None, "resolved"
        assert self.data.max_length is not None, "resolved"
        return self.optim.batch_size * self.optim.gradient_accumulation_steps * self.data.max_length * world

    def row(self) -> dict[str, Any]:
        """The fields of a results row that say what the settings were."""
        return {"max_length": self.data.max_length, **adapters.row(self.lora), **row_of(self)}


def row_of(config: AnyTraining) -> dict[str, Any]:
    """The fields that the results row of every kind of training has about its settings."""
    return {
        "batch_size": config.optim.batch_size,
        "gradient_accumulation_steps": config.optim.gradient_accumulation_steps,
        "compress_method": config.comm.comm_compress,
        "compress_config": config.comm.comm_config_json,
        "param_compress_method": config.comm.param_compress,
        "param_compress_config": config.comm.param_config_json,
        "comm_dtype": config.comm.comm_dtype,
        **_of_optimizer(config),
        **_of_parallel(config),
        "seed": config.run.seed,
        "virtual_ranks": config.run.virtual_ranks or None,
        "config": config.resolved(),
        "config_hash": config.digest(),
        **parts_of_config(config),
    }


def _of_optimizer(config: AnyTraining) -> dict[str, Any]:
    """Which optimizer, and of one that exchanges something by which method."""
    name = config.optim.optimizer
    return {"optimizer": name, "optimizer_method": None if name == "adamw" else config.comm.optimizer_compress}


def _of_parallel(config: AnyTraining) -> dict[str, Any]:
    """How ranks share the work; nothing where all are data-parallel ranks of FSDP2."""
    parallel, comm = config.parallel, config.comm
    row: dict[str, Any] = {}
    if parallel.dp_replicas > 1:
        row["dp_replicas"] = parallel.dp_replicas
    if parallel.tp > 1:
        row |= {"tp": parallel.tp, "layout": parallel.layout, "shares": parallel.share_list}
    if parallel.pp > 1:
        row |= {"pp": parallel.pp, "pp_schedule": parallel.pp_schedule}
    if parallel.is_divided:
        row |= {"activation_method": comm.activation, "activation_grad_method": comm.activation_grad}
    if comm.outer != "none":
        rate, momentum = comm.outer_step
        row |= {"outer": comm.outer, "outer_every": comm.outer_every, "outer_method": comm.outer_compress}
        row |= {"outer_gather_method": comm.outer_gather, "outer_learning_rate": rate, "outer_momentum": momentum}
    return row


def parts_of_config(config: AnyTraining) -> dict[str, Any]:
    """Which settings say how ranks communicate, and which do not affect the training: whoever compares rows must know.

    The settings of communication come with their defaults. A row from before a setting existed did what its default
    says, so readers can tell that both communicated alike.
    """
    return {
        "arm_settings": {spec.name: spec.default for spec in specs_of(type(config.comm))},
        "side_settings": [name for name, spec in config.specs().items() if not spec.affects_training],
    }


def parse(argv: Sequence[str]) -> TrainConfig:
    """The settings that ``argv`` asks for; ConfigError lists all mistakes. ``--help`` prints the flags and exits 0."""
    return parse_as(TrainConfig, argv)


def default_run_name(method: str, model: str, now: datetime | None = None) -> str:
    """A name that is safe for file systems, such as ``topk-gpt2-nano-20250131-235959`` (UTC; ``now``: a fixed time).

    Ranks that ask in different seconds get different names: let one rank choose the name and tell the others.
    """
    stamp = (now or datetime.now(UTC)).strftime("%Y%m%d-%H%M%S")
    return re.sub(r"[^A-Za-z0-9._+=,@-]+", "-", f"{method}-{model}-{stamp}").lstrip("-._+=,@")[-128:]
