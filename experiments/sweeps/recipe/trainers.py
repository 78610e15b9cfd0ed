"""What a sweep can train: which program does it, and how recipes, plans and tables speak of it.

All that differs between a sweep of language models and one of drafts is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.sweeps.recipe.arms import DIRECTIONS, FURTHER
from fsdp_lab.data.sources.corpora import CORPORA
from fsdp_lab.eagle.draft.config import EagleConfig, check
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.groups import CommConfig
from fsdp_lab.settings.models.presets import resolve
from fsdp_lab.settings.reading.specs import specs_of

AnyConfig = TrainConfig | EagleConfig
CORPORA_FOLDER = Path("fsdp_output/corpora")
DRAFTS_FOLDER = Path("fsdp_output/drafts")  # what experiments.drafts.real_run leaves
VIRTUAL = "virtual_ranks"  # the trainer's setting for ranks without processes of their own; 0: none


@dataclass(frozen=True)
class Measure:
    """What a run is judged by: ``column`` of its row, shown under ``heading`` in ``form``."""

    heading: str
    column: str
    form: str

    def said(self, row: Mapping[str, Any]) -> str:
        """The value as text: ``12.50``, or ``-`` where the row does not know."""
        value = row.get(self.column)
        return "-" if value is None else format(value, self.form)


@dataclass(frozen=True, eq=False)
class Trainer:
    """One program that trains.

    A recipe lists what is trained under ``key``, each as one of the settings ``named_by`` (setting: what it is; plain
    text is the first). ``elsewhere`` are settings that do not belong into `common`, with the key that sets them;
    ``foreign`` are keys of other trainers' recipes. A run's time is estimated from other runs by its ``work``, which
    ``work_of`` finds in a row, if they agree in the settings ``alike``."""

    name: str
    module: str
    config: type[TrainConfig] | type[EagleConfig]
    key: str
    noun: str
    named_by: Mapping[str, str]
    example: str
    elsewhere: Mapping[str, str]
    foreign: Mapping[str, str]
    has_corpora: bool
    """Is data_path said as ``corpus``, which knows some by name?"""
    needs: Mapping[str, str]
    """Settings that are files or folders, and what a complaint about one begins with."""
    built_by: Callable[[Path], str | None]
    """The words after ``fsdp-lab`` that make such a file, where a command does."""
    complete: Callable[[Any], AnyConfig]
    """The settings with nothing left open. ValueError where they do not go together."""
    quality: Measure
    unit: str
    work: Callable[[Any, int], int | None]
    """The work of a run with these settings on so many ranks; None when the length of the data decides."""
    work_of: Callable[[Mapping[str, Any]], int | None]
    alike: tuple[str, ...]
    analysis: str
    """The words after ``fsdp-lab`` that read the rows; {rows} is the file."""


_COMMON_ELSEWHERE = {
    **{spec.name: "say it in arms" for spec in specs_of(CommConfig) if spec.name not in FURTHER},
    "system": "say it in arms",
    "seed": "say it in seeds",
    "results_path": "the sweep sets it (--out)",
    "curves_dir": "the sweep sets it: curves/ beside the rows",
    "run_name": "the sweep sets it",
}
METHODS = tuple(name for pair in DIRECTIONS.values() for name in pair)


def _corpus_built_by(path: Path) -> str | None:
    name = path.name.removesuffix(".jsonl.gz")
    return f"data build {name}" if name in CORPORA and path.parent == CORPORA_FOLDER else None


def _tokens(config: TrainConfig, world: int) -> int | None:
    optim, length = config.optim, config.data.max_length
    if optim.max_steps is None or optim.batch_size is None or length is None:
        return None
    return optim.max_steps * config.tokens_per_step(world)


LANGUAGE_MODEL = Trainer(
    name="language_model",
    module="fsdp_lab.train",
    config=TrainConfig,
    key="models",
    noun="model",
    named_by={"model": "a preset's name", "model_dir": "a folder"},
    example="gpt2-nano",
    elsewhere={
        **_COMMON_ELSEWHERE,
        "model": "say it in models",
        "model_dir": "say it in models, as {model_dir: FOLDER}",
        "data_path": "say it as corpus",
        VIRTUAL: "say it as virtual_world_sizes",
    },
    foreign={"targets": "for drafts (trainer: eagle); say models"},
    has_corpora=True,
    needs={"data_path": "corpus:", "model_dir": "models: model_dir"},
    built_by=_corpus_built_by,
    complete=lambda config: resolve(config, has_gpu=False),  # the model is named, so a GPU decides nothing
    quality=Measure("PPL", "val_ppl", ".2f"),
    unit="tokens",
    work=_tokens,
    work_of=lambda row: row.get("tokens_seen"),
    alike=("mixed_precision", "compile"),
    analysis="report {rows} --out report/",
)


def _draft_built_by(path: Path) -> str | None:
    return "eagle run" if path.parent == DRAFTS_FOLDER else None


def _complete_draft(config: EagleConfig) -> EagleConfig:
    check(config)
    return config


def _conversations(config: EagleConfig, world: int) -> int | None:
    """The work of a draft's training in conversations: the number of tokens is known only when they are read."""
    optim = config.optim
    return optim.max_steps and optim.max_steps * optim.batch_size * optim.gradient_accumulation_steps * world


def _conversations_of(row: Mapping[str, Any]) -> int | None:
    factors = [row.get(n) for n in ("steps", "batch_size", "gradient_accumulation_steps", "world_size")]
    steps, batch, micro, world = factors
    return steps * batch * micro * world if steps and batch and micro and world else None


_REAL_RANKS = "a draft is trained by real ranks; leave it out and say world_sizes"
EAGLE = Trainer(
    name="eagle",
    module="fsdp_lab.eagle.train",
    config=EagleConfig,
    key="targets",
    noun="target",
    named_by={"target_dir": "a folder"},
    example="saved/target",
    elsewhere={**_COMMON_ELSEWHERE, "target_dir": "say it in targets", VIRTUAL: _REAL_RANKS},
    foreign={
        "models": "for language models; a draft has targets",
        "corpus": "for language models; a draft has common.data_path, a file of conversations",
        "start": "for language models; a draft has a target",
        "virtual_world_sizes": _REAL_RANKS,
    },
    has_corpora=False,
    needs={"target_dir": "targets:", "data_path": "data_path:", "eval_data": "eval_data:", "draft_dir": "draft_dir:"},
    built_by=_draft_built_by,
    complete=_complete_draft,
    quality=Measure("tau", "tau", ".3f"),
    unit="conversations",
    work=_conversations,
    work_of=_conversations_of,
    alike=("dtype", "max_length", "steps_ahead", "shard_target"),
    analysis="drafts {rows} --out report/",
)
TRAINERS = {trainer.name: trainer for trainer in (LANGUAGE_MODEL, EAGLE)}


def trainer_of(row: Mapping[str, Any]) -> Trainer:
    """The trainer that wrote a row, by the settings in it."""
    return EAGLE if EAGLE.named_by.keys() & row["config"].keys() else LANGUAGE_MODEL
