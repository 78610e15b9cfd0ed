"""YAML files: settings for ``--config`` and recipes of sweeps."""

from __future__ import annotations

import itertools
from pathlib import Path

from experiments.faults.hostile.case import Case, Make

ALIASES = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join(['*' + before] * 10)}]\n" for before, after in itertools.pairwise("abcdefghijk")
)
_TEXTS: dict[str, tuple[bytes, str]] = {
    "aliases that stand for 10 billion values": (ALIASES.encode(), "more than 10,000 values"),
    "an alias of what it lies in": (b"seed: &a [*a]", "an alias of what it lies in"),
    "3,000 levels in brackets": (b"seed: " + b"[" * 3000, "more than 100 levels"),
    "3,000 levels of lists": (b"- " * 3000 + b"x", "more than 100 levels"),
    "!!bool x": (b"!!bool x", "not what its tag says"),
    "!!timestamp x": (b"seed: !!timestamp x", "not what its tag says"),
    "a Python object": (b"seed: !!python/object/apply:os.system ['touch FOLDER/sprung']", "not valid YAML"),
    "a whole number of 400 digits": (b"seed: " + b"9" * 400, "too large for a whole number of 64 bits"),
    "a whole number of 5,000 digits": (b"seed: " + b"9" * 5000, "too large for a whole number of 64 bits"),
    "a key twice": (b"seed: 1\nseed: 2", "appears twice"),
    "two megabytes": (b"#" * (2 << 20), "more than 1,048,576 bytes"),
    "bytes that are not UTF-8": (b"seed: \xff", "utf-8"),
}


def _config(text: bytes) -> Make:
    def make(folder: Path) -> list[str]:
        (folder / "settings.yaml").write_bytes(text.replace(b"FOLDER", str(folder).encode()))
        return ["fsdp_lab.settings", "check", "--", "--config", str(folder / "settings.yaml")]

    return make


def _recipe(text: bytes) -> Make:
    def make(folder: Path) -> list[str]:
        (folder / "recipe.yaml").write_bytes(text.replace(b"FOLDER", str(folder).encode()))
        return ["experiments.sweep", str(folder / "recipe.yaml"), "--dry_run"]

    return make


_RECIPES: dict[str, tuple[bytes, str]] = {
    name: _TEXTS[name]
    for name in ("aliases that stand for 10 billion values", "3,000 levels in brackets", "!!bool x", "a Python object")
} | {
    "seeds of 400 digits": (b"name: x\nseeds: [" + b"9" * 400 + b"]", "64 bits"),
    "it includes itself": (b"include: recipe.yaml\nname: x", "include"),
    "models that are a number": (b"name: x\nseeds: [1]\nmodels: 7\narms: [{comm_compress: int8}]", "models"),
    "arms that are lists of lists": (b"name: x\nseeds: [1]\nmodels: [gpt2-nano]\narms: [[[]]]", "arms"),
}

CASES = [
    *(Case("YAML", name, _config(text), says, never=("sprung",)) for name, (text, says) in _TEXTS.items()),
    *(Case("recipes", name, _recipe(text), says, never=("sprung",)) for name, (text, says) in _RECIPES.items()),
]
