"""Short trainings with the judged method and without compression, in the setting of the reference rows.

Sweeps of `experiments.sweep` run them: a cell that is finished is not run again. The rows of `none` do not depend on
the method: they lie beside the folders of judged methods, and the next one that is judged uses them again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.judge import children
from experiments.judge.subject import plugin
from experiments.sweeps.recipe.trainers import CORPORA_FOLDER

RECIPES = children.ROOT / "experiments" / "recipes"
REFERENCE = children.ROOT / "results" / "reference" / "fresh_weights" / "sweeps.jsonl"
CORPUS = "prose"


def corpus_missing() -> str:
    """What to do where the corpus of the reference rows is not there; empty where it is."""
    file = children.ROOT / CORPORA_FOLDER / f"{CORPUS}.jsonl.gz"
    if file.exists():
        return ""
    return (
        f"{file}: the trainings' corpus is not there: fsdp-lab data build {CORPUS} --out {file.parent} builds it, "
        "or leave the trainings out with --no_training"
    )


def recipe(arm: Mapping[str, Any] | str, seeds: Sequence[int], common: Mapping[str, Any] | None = None) -> str:
    """The recipe of one arm in the reference recipes' setting (YAML, as JSON)."""
    said: dict[str, Any] = {"name": "judge", "include": str(RECIPES / "_reference.yaml"), "seeds": list(seeds)}
    return json.dumps({**said, "common": dict(common or {}), "arms": [arm]}, indent=1) + "\n"


def run(
    file: Path, name: str, settings: Mapping[str, Any], rows: Path, baseline: Path, seeds: Sequence[int], limit_s: float
) -> str:
    """Train ``none``, whose rows go to ``baseline``, then the method, whose rows go to ``rows``.

    Returns what went wrong; empty when nothing did. ``limit_s`` is for each of the two sweeps.
    """
    folder = rows.parent
    why = _sweep("none", seeds, folder / "none.yaml", baseline, [], limit_s)
    if why:
        return f"trainings without compression: {why}"
    plugin.write_plugin(folder / "plugin", file)
    arm = {"gradients": {"method": name, **settings}}
    return _sweep(arm, seeds, folder / "method.yaml", rows, [folder / "plugin"], limit_s)


def _sweep(
    arm: Mapping[str, Any] | str, seeds: Sequence[int], path: Path, out: Path, first: Sequence[Path], limit_s: float
) -> str:
    path.write_text(recipe(arm, seeds))
    log = path.with_suffix(".log")
    command = ["-m", "experiments.sweep", str(path), "--out", str(out)]
    with log.open("wb") as printed:
        process = children.start(command, printed, env=children.environment(first), cwd=children.ROOT)
        in_time = children.wait([process], limit_s)
    if not in_time:
        return f"they had not ended after {limit_s:g} s, and were stopped; the same command goes on from there"
    if process.returncode == 0:
        return ""
    last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"exit code {process.returncode}; {log} says: {' / '.join(last[-3:])}"


def capture(folder: Path, limit_s: float) -> str:
    """Save gradients of a short training without compression (gpt2-mini, steps 40 and 41); what went wrong, if it did.

    Those that are in ``folder`` already are used again.
    """
    if list((folder / "gradients").glob("*.pt")):
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["-m", "experiments.fidelity.capture", "--out", str(folder), "--steps", "40:42", "--"]
    flags = ["--model", "gpt2-mini", "--max_length", "128", "--batch_size", "4", "--learning_rate", "0.002"]
    with (folder / "capture.log").open("wb") as printed:
        process = children.start([*command, *flags], printed)
        in_time = children.wait([process], limit_s)
    if not in_time:
        return f"capturing real gradients had not ended after {limit_s:g} s"
    return "" if process.returncode == 0 else f"capturing real gradients failed; {folder / 'capture.log'} says why"


def page(folder: Path) -> int:
    """Have `analysis.judged` write the page from ``folder/facts.json``; its exit code."""
    command = [sys.executable, "-m", "analysis.judged", str(folder / "facts.json"), "--out", str(folder)]
    return subprocess.run(command, env=children.environment(), check=False).returncode
