"""A recipe: what a sweep compares, read from YAML and checked before anything runs. docs/sweeps.md shows every key.

name: methods
include: reference.yaml          # another recipe's keys; what this file says itself wins, `common` key by key
seeds: [1, 2, 3]
models: [gpt2-nano]
corpus: prose
common: {max_steps: 400}
world_sizes: [2]
arms: [none, int8, {gradients: {method: topk, ratio: [0.01, 0.1]}, parameters: int8}]
tune: {learning_rate: [0.002, 0.004]}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.namespaces import parse_delay, parse_rate
from experiments.sweeps.arms import FURTHER, Arm, arms_of
from experiments.sweeps.words import RecipeError, checked_settings, unknown
from fsdp_lab.config import CommConfig
from fsdp_lab.data.corpora import CORPORA
from fsdp_lab.specs import specs_of
from fsdp_lab.strict import load_yaml

CORPORA_FOLDER = Path("fsdp_output/corpora")
VIRTUAL = "virtual_ranks"  # the trainer's setting for ranks without processes of their own; 0: none
KEYS = (
    *("name", "about", "include", "corpus", "common", "models", "arms", "seeds"),
    *("world_sizes", "virtual_world_sizes", "links", "tune"),
)
# settings of a run that are not for `common`, and who says them
ELSEWHERE = {
    **{spec.name: "say it in arms" for spec in specs_of(CommConfig) if spec.name not in FURTHER},
    "seed": "say it in seeds",
    "model": "say it in models",
    "model_dir": "say it in models, as {model_dir: FOLDER}",
    "data_path": "say it as corpus",
    VIRTUAL: "say it as virtual_world_sizes",
    "results_path": "the sweep sets it (--out)",
    "curves_dir": "the sweep sets it: curves/ beside the rows",
    "run_name": "the sweep sets it",
}


@dataclass(frozen=True)
class Shaped:
    """An emulated link: ``rate`` and ``delay`` as `experiments.links` takes them."""

    rate: str = "none"
    delay: str = "0ms"

    @property
    def as_in_rows(self) -> tuple[float | None, float]:
        """link_rate_asked and link_delay_ms of the rows behind it."""
        return parse_rate(self.rate), parse_delay(self.delay) * 1e3

    def __str__(self) -> str:
        return self.rate if self.delay == "0ms" else f"{self.rate} {self.delay}"


@dataclass(frozen=True)
class Recipe:
    """What is varied, in typed form; ``source`` is the same as plain data, without include."""

    name: str
    about: str
    seeds: list[int]
    world_sizes: list[int]
    virtual_world_sizes: list[int]
    links: list[Shaped | None]
    models: list[dict[str, Any]]
    arms: list[Arm]
    common: dict[str, Any]
    tune: dict[str, list[Any]]
    source: dict[str, Any]


def read(path: Path, flags: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe in a file, with ``flags`` (training settings) instead of what it says in ``common``.

    Raises RecipeError with every complaint.
    """
    said = _included(path)
    complaints = [unknown(key, KEYS) for key in said if key not in KEYS]
    said = {key: value for key, value in said.items() if key in KEYS}
    recipe = _typed(said, dict(flags or {}), complaints)
    if complaints:
        raise RecipeError(path, complaints)
    return recipe


def _included(path: Path) -> dict[Any, Any]:
    said = _load(path)
    if "include" not in said:
        return said
    name = said.pop("include")
    if not isinstance(name, str):
        raise RecipeError(path, [f"include: got {name!r}, wants a file such as reference.yaml"])
    base = _load(path.parent / name)
    if "include" in base:
        raise RecipeError(path.parent / name, ["include: an included file cannot include another"])
    commons = [part.get("common", {}) for part in (base, said)]
    if all(isinstance(common, Mapping) for common in commons):
        said = {**said, "common": {**commons[0], **commons[1]}}
    return {**base, **said}


def _load(path: Path) -> dict[Any, Any]:
    try:
        loaded = load_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(path, [f"cannot be read ({error.strerror})"]) from None
    except ValueError as error:  # malformed YAML, or not UTF-8
        raise RecipeError(path, [str(error)]) from None
    if not isinstance(loaded, dict):
        raise RecipeError(path, ["wants keys such as `name: methods`"])
    return loaded


def _typed(said: dict[str, Any], flags: dict[str, Any], complaints: list[str]) -> Recipe:
    if not isinstance(said.get("about", ""), str):
        complaints.append(f"about: got {said['about']!r}, wants some text")
    name = said.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        complaints.append(f"name: {_got(name)}, wants letters, digits, - and _ (it names files)")
    virtual = _several(said, "virtual_world_sizes", _is_several, "2 ranks or more such as [8, 16]", [], complaints)
    links = _links(said.get("links", [None]), complaints)
    if virtual and any(link is not None for link in links):
        complaints.append("links: virtual ranks share one process and send nothing; give them a recipe of their own")
    real = [] if virtual else [2]
    common = checked_settings("common", said.get("common", {}), ELSEWHERE, complaints)
    common |= _corpus(said.get("corpus", "embedded"), complaints)
    models = _models(said.get("models"), complaints)
    tune = _tune(said.get("tune", {}), complaints)
    complaints += [f"tune.{key}: models sets it" for key in tune if any(key in model for model in models)]
    varied = {*ELSEWHERE, *tune, *(key for model in models for key in model)} - {"data_path"}
    complaints += [f"--{key}: {ELSEWHERE.get(key, 'the recipe varies it')}" for key in flags if key in varied]
    _asks_for_files({**common, **flags}, complaints)
    return Recipe(
        name=str(name),
        about=" ".join(str(said.get("about", "")).split()),
        seeds=_several(said, "seeds", _is_seed, "whole numbers such as [1, 2, 3]", None, complaints),
        world_sizes=_several(said, "world_sizes", _is_count, "ranks such as [1, 2, 4]", real, complaints),
        virtual_world_sizes=virtual,
        links=links,
        models=models,
        arms=arms_of(said.get("arms"), complaints),
        common=common | flags,
        tune=tune,
        source=_source(said, flags),
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
        complaints.append(f"{key}: {_got(values)}, wants a list of {wanted}")
        return []
    if len(set(values)) < len(values):
        complaints.append(f"{key}: a value is there twice in {values!r}")
    return values


def _got(value: Any) -> str:
    return "missing" if value is None else f"got {value!r}"


def _source(said: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe as one that says itself what the flags said."""
    common = dict(said["common"]) if isinstance(said.get("common"), Mapping) else {}
    corpus = {"corpus": flags["data_path"] or "embedded"} if "data_path" in flags else {}
    own = {key: value for key, value in flags.items() if key != "data_path"}
    return {**said, **corpus, "common": {**common, **own}}


def _is_seed(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**32


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_several(value: Any) -> bool:
    return type(value) is int and value >= 2


def _corpus(name: Any, complaints: list[str]) -> dict[str, Any]:
    if not isinstance(name, str) or not name:
        complaints.append(f"corpus: got {name!r}, wants embedded, {', '.join(CORPORA)} or a path")
        return {}
    if name == "embedded":
        return {"data_path": None}
    return {"data_path": str(CORPORA_FOLDER / f"{name}.jsonl.gz") if name in CORPORA else name}


def _models(listed: Any, complaints: list[str]) -> list[dict[str, Any]]:
    """Each as training settings, model or model_dir among them; others (its own batch_size, say) win over `common`."""
    if not isinstance(listed, list) or not listed:
        complaints.append(f"models: {_got(listed)}, wants a list such as [gpt2-nano]")
        return []
    elsewhere = {key: where for key, where in ELSEWHERE.items() if key not in ("model", "model_dir")}
    found = []
    for number, said in enumerate(listed, start=1):
        where = f"models[{number}]"
        settings = checked_settings(where, {"model": said} if isinstance(said, str) else said, elsewhere, complaints)
        if isinstance(said, Mapping) and ("model" in said) == ("model_dir" in said):
            complaints.append(f"{where}: wants either model (a preset's name) or model_dir (a folder)")
        found.append(settings)
    return found


def _links(listed: Any, complaints: list[str]) -> list[Shaped | None]:
    if not isinstance(listed, list) or not listed:
        complaints.append(f"links: got {listed!r}, wants a list such as [null, 200mbit]")
        return []
    found: list[Shaped | None] = []
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
        if link in found:
            complaints.append(f"links[{number}]: {link} is there already")
        found.append(link)
    return found


def _tune(said: Any, complaints: list[str]) -> dict[str, list[Any]]:
    if not isinstance(said, Mapping) or not all(isinstance(values, list) and values for values in said.values()):
        complaints.append(f"tune: got {said!r}, wants settings with lists of values, such as learning_rate: [1e-3]")
        return {}
    elsewhere = ELSEWHERE | dict.fromkeys(FURTHER, "say it in arms: it belongs to how communication is done")
    tune: dict[str, list[Any]] = {}
    for key, values in said.items():
        for value in values:
            fine = checked_settings("tune", {key: value}, elsewhere, complaints)
            tune.setdefault(str(key), []).extend(fine.values())
        if len(set(map(str, tune[str(key)]))) < len(tune[str(key)]):
            complaints.append(f"tune.{key}: a value is there twice in {values!r}")
    return tune


def _asks_for_files(settings: Mapping[str, Any], complaints: list[str]) -> None:
    """What a run writes is thrown away with its folder, unless the recipe says where it is to stay."""
    wanted = [name for name in ("save_model", "tensorboard", "profile") if settings.get(name)]
    if wanted and "output_dir" not in settings:
        complaints.append(f"common.{wanted[0]}: say in common.output_dir, too, where that is to be kept")
