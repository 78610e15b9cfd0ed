"""A recipe: what a sweep compares, read from YAML and checked before anything runs.

docs/comparing/sweeps.md shows every key.

name: methods
include: _reference.yaml         # another recipe's keys; what this file says itself wins, `common` key by key
seeds: [1, 2, 3]
models: [gpt2-nano]
corpus: prose
common: {max_steps: 400}
world_sizes: [2]
arms: [none, int8, {gradients: {method: topk, ratio: [0.01, 0.1]}, parameters: int8}]
tune: {learning_rate: [0.002, 0.004]}
rates: results/chart_rates.json  # in place of tune: the rate that was chosen for each arm (fsdp-lab chart rates)

start: {model: gpt2-mini, max_steps: 2000}   # trained once; then, in place of fresh weights:
models: [{model_dir: start}, {start: {model: llama-mini}, corpus: code}]   # the second one's own start and corpus

trainer: eagle                   # drafts (docs/trainer/eagle.md); then, in place of models and corpus:
targets: [saved/target]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.network.rates_and_delays import parse_delay, parse_rate
from experiments.sweeps.recipe.arms import FURTHER, Arm, arms_of
from experiments.sweeps.recipe.complaints import RecipeError, checked_settings, got, unknown
from experiments.sweeps.recipe.corpora import corpus_settings
from experiments.sweeps.recipe.rates import Rates, rates_of
from experiments.sweeps.recipe.start import WORD, Start
from experiments.sweeps.recipe.subjects import subjects_of
from experiments.sweeps.recipe.trainers import LANGUAGE_MODEL, TRAINERS, Trainer
from fsdp_lab.settings.reading.cli import given_by
from fsdp_lab.settings.reading.strict import read_yaml

KEYS = (
    *("name", "about", "include", "trainer", "corpus", "common", "start", "models", "targets", "arms", "seeds"),
    *("world_sizes", "virtual_world_sizes", "links", "tune", "rates"),
)


@dataclass(frozen=True)
class Shaped:
    """An emulated link: ``rate`` and ``delay`` as `experiments.links` takes them."""

    rate: str = "none"
    delay: str = "0ms"

    @property
    def as_in_rows(self) -> tuple[float | None, float]:
        """The link as ``link_rate_asked`` and ``link_delay_ms`` of rows have it."""
        return parse_rate(self.rate), parse_delay(self.delay) * 1e3

    def __str__(self) -> str:
        return self.rate if self.delay == "0ms" else f"{self.rate} {self.delay}"


@dataclass(frozen=True)
class Recipe:
    """What is varied, in typed form. ``subjects`` are what is trained, as settings by which the trainer names it;
    ``starts`` are the trainings whose folders some of them name.

    ``source`` is the same as plain data, without include."""

    name: str
    about: str
    trainer: Trainer
    seeds: list[int]
    world_sizes: list[int]
    virtual_world_sizes: list[int]
    links: list[Shaped | None]
    subjects: list[dict[str, Any]]
    arms: list[Arm]
    common: dict[str, Any]
    tune: dict[str, list[Any]]
    source: dict[str, Any]
    starts: tuple[Start, ...] = ()
    rates: Rates | None = None


def read(path: Path, words: Sequence[str] = ()) -> Recipe:
    """The recipe in a file, with ``words`` (flags of its trainer) instead of what it says in ``common``.

    Raises RecipeError with every complaint, or ConfigError with those about the flags.
    """
    said = _included(path)
    trainer = _trainer(said.get("trainer", LANGUAGE_MODEL.name), path)
    complaints = [unknown(key, [k for k in KEYS if k not in trainer.foreign]) for key in said if key not in KEYS]
    complaints += [f"{key}: {why}" for key, why in trainer.foreign.items() if key in said]
    said = {key: value for key, value in said.items() if key in KEYS and key not in trainer.foreign}
    recipe = _typed(trainer, said, given_by(trainer.config, words, trainer.module), complaints)
    if complaints:
        raise RecipeError(path, complaints)
    return recipe


def _trainer(name: Any, path: Path) -> Trainer:
    if not isinstance(name, str) or name not in TRAINERS:
        raise RecipeError(path, [f"trainer: got {name!r}, wants {' or '.join(TRAINERS)}"])
    return TRAINERS[name]


def _included(path: Path) -> dict[Any, Any]:
    said = _load(path)
    if "include" not in said:
        return said
    name = said.pop("include")
    if not isinstance(name, str):
        raise RecipeError(path, [f"include: got {name!r}, wants a file such as _reference.yaml"])
    base = _load(path.parent / name)
    if "include" in base:
        raise RecipeError(path.parent / name, ["include: an included file cannot include another"])
    commons = [part.get("common", {}) for part in (base, said)]
    if all(isinstance(common, Mapping) for common in commons):
        said = {**said, "common": {**commons[0], **commons[1]}}
    return {**base, **said}


def _load(path: Path) -> dict[Any, Any]:
    try:
        loaded = read_yaml(path)
    except OSError as error:
        raise RecipeError(path, [f"cannot be read ({error.strerror})"]) from None
    except ValueError as error:  # malformed YAML, or not UTF-8
        raise RecipeError(path, [str(error)]) from None
    if not isinstance(loaded, dict):
        raise RecipeError(path, ["wants keys such as `name: methods`"])
    return loaded


def _typed(trainer: Trainer, said: dict[str, Any], flags: dict[str, Any], complaints: list[str]) -> Recipe:
    if not isinstance(said.get("about", ""), str):
        complaints.append(f"about: got {said['about']!r}, wants some text")
    name = said.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        complaints.append(f"name: {got(name)}, wants letters, digits, - and _ (it names files)")
    virtual = _several(said, "virtual_world_sizes", _is_several, "2 ranks or more such as [8, 16]", [], complaints)
    links = _links(said.get("links", [None]), complaints)
    if virtual and any(link is not None for link in links):
        complaints.append("links: virtual ranks share one process and send nothing; give them a recipe of their own")
    real = [] if virtual else [2]
    elsewhere = trainer.elsewhere
    common = checked_settings("common", said.get("common", {}), trainer.config.specs(), elsewhere, complaints)
    common |= corpus_settings(said.get("corpus", "embedded"), complaints) if trainer.has_corpora else {}
    subjects, starts = subjects_of(trainer, said.get(trainer.key), said.get(WORD), complaints)
    tune = _tune(trainer, said.get("tune", {}), complaints)
    of_subjects = {key for subject in subjects for key in subject}
    complaints += [f"tune.{key}: {trainer.key} sets it" for key in tune if key in of_subjects]
    varied = {*elsewhere, *tune, *of_subjects} - ({"data_path"} if trainer.has_corpora else set())
    complaints += [f"--{key}: {elsewhere.get(key, 'the recipe varies it')}" for key in flags if key in varied]
    _asks_for_files({**common, **flags}, complaints)
    arms = arms_of(said.get("arms"), complaints)
    if tune and "rates" in said:
        complaints.append("rates: the recipe tunes, too (tune); leave one of them out")
    return Recipe(
        name=str(name),
        about=" ".join(str(said.get("about", "")).split()),
        trainer=trainer,
        seeds=_several(said, "seeds", _is_seed, "whole numbers such as [1, 2, 3]", None, complaints),
        world_sizes=_several(said, "world_sizes", _is_count, "ranks such as [1, 2, 4]", real, complaints),
        virtual_world_sizes=virtual,
        links=links,
        subjects=subjects,
        arms=arms,
        common=common | flags,
        tune=tune,
        source=_source(trainer, said, flags),
        starts=starts,
        rates=rates_of(said.get("rates"), arms, complaints),
    )


def _several(
    said: Mapping[str, Any],
    key: str,
    fits: Callable[[Any], bool],
    wanted: str,
    default: list[int] | None,
    complaints: list[str],
) -> list[int]:
    if key not in said and default is not None:
        return default
    values = said.get(key)
    if not isinstance(values, list) or not values or not all(map(fits, values)):
        complaints.append(f"{key}: {got(values)}, wants a list of {wanted}")
        return []
    if len(set(values)) < len(values):
        complaints.append(f"{key}: a value is there twice in {values!r}")
    return values


def _source(trainer: Trainer, said: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe as plain data in which the flags' values are written out."""
    common = dict(said["common"]) if isinstance(said.get("common"), Mapping) else {}
    own, corpus = dict(flags), {}
    if trainer.has_corpora and "data_path" in own:
        corpus = {"corpus": own.pop("data_path") or "embedded"}
    return {**said, **corpus, "common": {**common, **own}}


def _is_seed(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**32


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_several(value: Any) -> bool:
    return type(value) is int and value >= 2


def _links(listed: Any, complaints: list[str]) -> list[Shaped | None]:
    if not isinstance(listed, list) or not listed:
        complaints.append(f"links: got {listed!r}, wants a list such as [null, 200mbit]")
        return []
    links: list[Shaped | None] = []
    for number, said in enumerate(listed, start=1):
        link = None
        if said is not None:
            parts = {"rate": said} if isinstance(said, str) else said
            try:
                if not isinstance(parts, Mapping) or not all(isinstance(value, str) for value in parts.values()):
                    raise ValueError(f"got {said!r}, wants null, a rate such as 200mbit, or {{rate: ..., delay: ...}}")
                if strange := [key for key in parts if key not in ("rate", "delay")]:
                    raise ValueError(unknown(strange[0], ("rate", "delay")))
                link = Shaped(**parts)
                _ = link.as_in_rows
            except ValueError as error:
                complaints.append(f"links[{number}]: {error}")
                continue
        if link in links:
            complaints.append(f"links[{number}]: {link} is there already")
        links.append(link)
    return links


def _tune(trainer: Trainer, said: Any, complaints: list[str]) -> dict[str, list[Any]]:
    if not isinstance(said, Mapping) or not all(isinstance(values, list) and values for values in said.values()):
        complaints.append(f"tune: got {said!r}, wants settings with lists of values, such as learning_rate: [1e-3]")
        return {}
    elsewhere = dict(trainer.elsewhere) | dict.fromkeys(
        FURTHER, "say it in arms: it belongs to how communication is done"
    )
    tune: dict[str, list[Any]] = {}
    for key, values in said.items():
        for value in values:
            fine = checked_settings("tune", {key: value}, trainer.config.specs(), elsewhere, complaints)
            tune.setdefault(str(key), []).extend(fine.values())
        if len(set(map(str, tune[str(key)]))) < len(tune[str(key)]):
            complaints.append(f"tune.{key}: a value is there twice in {values!r}")
    return tune


def _asks_for_files(settings: Mapping[str, Any], complaints: list[str]) -> None:
    """Complain of settings that write files where these would be thrown away with the run's folder."""
    wanted = [name for name in ("save_model", "tensorboard", "profile") if settings.get(name)]
    if wanted and "output_dir" not in settings:
        complaints.append(f"common.{wanted[0]}: say in common.output_dir, too, where that is to be kept")
