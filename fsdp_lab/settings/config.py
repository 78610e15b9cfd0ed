"""What a training run is told: all groups of its settings together."""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from fsdp_lab.settings.groups import CommConfig, DataConfig, ModelConfig, OptimConfig, RunConfig
from fsdp_lab.settings.reading.fields import Config
from fsdp_lab.settings.reading.specs import Spec
from fsdp_lab.settings.refusing.conflicts import conflicts


class AnyTraining(Protocol):
    """What a run asks of its settings, whatever it trains: a `Config` that has these groups."""

    @property
    def optim(self) -> OptimConfig:
        """Batches and the optimiser."""
        ...

    @property
    def comm(self) -> CommConfig:
        """What is compressed."""
        ...

    @property
    def run(self) -> RunConfig:
        """Where, how often, when to give up."""
        ...

    @property
    def trained(self) -> str:
        """What is trained, for the name of a run that was given none."""
        ...

    @property
    def program(self) -> str:
        """Which module trains with these settings: what messages begin with."""
        ...

    def row(self) -> dict[str, Any]:
        """What a results row says of the settings."""
        ...

    @classmethod
    def specs(cls) -> dict[str, Spec]:
        """As `Config.specs`."""
        ...

    def resolved(self) -> dict[str, Any]:
        """As `Config.resolved`."""
        ...

    def to_yaml(self) -> str:
        """As `Config.to_yaml`."""
        ...

    def digest(self) -> str:
        """As `Config.digest`."""
        ...


@dataclass(frozen=True)
class TrainConfig(Config):
    """All settings of one training run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    comm: CommConfig = field(default_factory=CommConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @property
    def trained(self) -> str:
        """The model's preset, or the name of its folder."""
        return Path(self.model.model_dir).name if self.model.model_dir else str(self.model.model)

    @property
    def program(self) -> str:
        """Which module trains with these settings."""
        return "fsdp_lab.train"

    def conflicts(self) -> list[str]:
        """Settings that do not go together, as far as can be said without knowing of GPUs."""
        return conflicts(self, has_gpu=False)

    def tokens_per_step(self, world: int) -> int:
        """Tokens of ``world`` ranks in one optimizer step, once the settings are resolved."""
        assert self.optim.batch_size is not None, "resolved"
        assert self.data.max_length is not None, "resolved"
        return self.optim.batch_size * self.optim.gradient_accumulation_steps * self.data.max_length * world

    def row(self) -> dict[str, Any]:
        """What a results row says of the settings."""
        return {"max_length": self.data.max_length, **row_of(self)}


def row_of(config: AnyTraining) -> dict[str, Any]:
    """What every training's results row says of its settings."""
    return {
        "batch_size": config.optim.batch_size,
        "gradient_accumulation_steps": config.optim.gradient_accumulation_steps,
        "compress_method": config.comm.comm_compress,
        "compress_config": config.comm.comm_config_json,
        "param_compress_method": config.comm.param_compress,
        "param_compress_config": config.comm.param_config_json,
        "comm_dtype": config.comm.comm_dtype,
        "seed": config.run.seed,
        "virtual_ranks": config.run.virtual_ranks or None,
        "config": config.resolved(),
        "config_hash": config.digest(),
    }


def default_run_name(method: str, model: str, now: datetime | None = None) -> str:
    """A file-system-safe name such as ``topk-gpt2-nano-20250131-235959`` (UTC; ``now`` for a fixed time).

    Ranks that ask a second apart get different names: let one rank choose and tell the others.
    """
    stamp = (now or datetime.now(UTC)).strftime("%Y%m%d-%H%M%S")
    return re.sub(r"[^A-Za-z0-9._+=,@-]+", "-", f"{method}-{model}-{stamp}").lstrip("-._+=,@")[-128:]
