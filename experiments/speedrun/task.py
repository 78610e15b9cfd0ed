"""The task: model, text, target and links, which an entry cannot choose, and the baselines that run beside it.

Whoever changes a value here makes another task: it needs another `Task.name`, and the records begin anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from experiments.network.rates_and_delays import parse_rate
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.reading.fields import digest_of

SIGNIFICANCE = 0.01
"""The greatest p with which an entry's mean loss may be called below the target."""
FEWEST_RUNS, MOST_RUNS = 4, 32
NONE, BF16 = "none", "bf16 + bf16"
ENTRY = "entry"
"""What the arms are called in code: the two baselines, and what was entered."""
RANKS = (2, 4)

_FIXED: dict[str, Any] = {
    # the model, from fresh weights, all of which are trained
    "model": "gpt2-nano",
    "model_dir": None,
    "vocab_size": 4096,
    "lora_rank": None,
    # the text, its split, its sequences and their order
    "data_path": None,
    "data_mix": {},
    "max_length": 128,
    "val_fraction": 0.02,
    "num_epochs": 1,
    # ranks: processes that each take batches of their own
    "virtual_ranks": 0,
    "dp": 0,
    "tp": 1,
    "pp": 1,
    "threads": 0,
    # what is measured: one evaluation, after the last step; nothing beside the training that costs or hides time
    "eval_steps": 0,
    "target_ppl": None,
    "ppl_at_s": None,
    "grad_error_every": 0,
    "log_interval": 10,
    "profile": False,
    "save_steps": 0,
    "save_on_stop": False,
    "save_model": False,
    "tensorboard": False,
    "trackers": None,
    "resume": "never",
}
_SEQUENCES_A_STEP = 8  # of all ranks together, in the baselines
_BASE: dict[str, Any] = {
    "gradient_accumulation_steps": 1,
    "learning_rate": 0.002,
    "min_learning_rate_ratio": 0.0,
    "warmup_steps": 60,
    "max_steps": 400,
    "mixed_precision": "bf16",
}
_BASELINES: dict[str, dict[str, Any]] = {
    NONE: {},
    BF16: {"comm_compress": "bf16", "param_compress": "bf16"},
}


@dataclass(frozen=True)
class Track:
    """One link. ``baseline_runs`` of each baseline stand among the runs of an entry."""

    name: str
    rate: str
    baseline_runs: int

    @property
    def bits_per_s(self) -> float:
        """What a node may send, headers included."""
        rate = parse_rate(self.rate)
        assert rate is not None, "every track has a limit"
        return rate


TRACKS = {
    track.name: track
    for track in (Track("20mbit", "20mbit", 1), Track("200mbit", "200mbit", 2), Track("1gbit", "1gbit", 2))
}


@dataclass(frozen=True)
class Task:
    """What all entries of all tracks have in common.

    ``target``: nats a token of the validation split, which the mean loss of an entry's runs must not exceed.
    ``fixed``: settings that an entry cannot change. ``base``: the settings from which an entry differs where it says
    so, and baselines never but in ``baselines``, by arm. ``facts``: what every row says of model and text."""

    name: str
    target: float
    fixed: Mapping[str, Any]
    base: Mapping[str, Any]
    baselines: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Any]
    is_rehearsal: bool = False

    def given(self, ranks: int) -> dict[str, Any]:
        """What the task says of its settings, by name; all others have the trainer's defaults."""
        return {"batch_size": _SEQUENCES_A_STEP // ranks, **self.base, **self.fixed}

    def settings(self, ranks: int, own: Mapping[str, Any]) -> dict[str, Any]:
        """Every setting of a run with ``own`` settings, by name; seed and places aside. Needs no method to be known."""
        return {**TrainConfig().resolved(), **self.given(ranks), **own, **self.fixed}

    def own(self, ranks: int, resolved: Mapping[str, Any]) -> dict[str, Any]:
        """Those of ``resolved`` settings that the task leaves free, and that are other than its own."""
        base, specs = self.settings(ranks, {}), TrainConfig.specs()
        return {
            name: value
            for name, value in resolved.items()
            if name != "seed" and specs[name].affects_training and value != base[name] and name not in self.fixed
        }


TASK = Task(
    name="gpt2-nano-1",
    target=5.76,
    fixed=_FIXED,
    base=_BASE,
    baselines=_BASELINES,
    facts={
        "model": "gpt2-nano",
        "dataset": "wiki-leads (embedded)",
        "dataset_tokens": 1559585,
        "num_parameters": 939072,
        "backend": "gloo",
        "eval_weights": "fp32 shards, gathered uncompressed",
    },
)


def rehearsed(task: Task) -> Task:
    """The task with a dozen steps and a target that everything reaches: to see whether an entry runs at all."""
    few = {"max_steps": 12, "warmup_steps": 2}
    return replace(task, target=20.0, fixed={**task.fixed, **few}, is_rehearsal=True)


def digest_of_settings(settings: Mapping[str, Any]) -> str:
    """The sha256 (hex) of the settings that affect the training, but the seed: equal for all runs of an arm.

    A setting that is not there has its default, so that rows from before it existed are read alike.
    """
    specs = TrainConfig.specs().values()
    values = {spec.name: settings.get(spec.name, spec.default) for spec in specs if spec.affects_training}
    defaults = {spec.name: spec.default for spec in specs}
    return digest_of({name: value for name, value in values.items() if name != "seed" and value != defaults[name]})
