"""Carrying out a race: warm-up, all runs in turns, and what stays of them as an entry's folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.network.namespaces import unavailable
from experiments.runs.training import train
from experiments.speedrun import entry as entries
from experiments.speedrun.entry import LOGS, ROWS, Entry
from experiments.speedrun.race import Race
from experiments.speedrun.score import Score, score, sentences
from experiments.speedrun.task import BF16, ENTRY, NONE
from experiments.sweeps.estimate import Estimator
from experiments.sweeps.plan import Plan, sound_rows
from experiments.sweeps.progress import Progress
from experiments.sweeps.recipe.arms import DIRECTIONS, FURTHER, label_of
from experiments.sweeps.recipe.cells import Cell
from experiments.sweeps.recipe.recipe import Recipe
from experiments.sweeps.recipe.trainers import LANGUAGE_MODEL
from experiments.sweeps.runner import Runner
from experiments.sweeps.slots import Slot
from fsdp_lab.run.environment import environment
from fsdp_lab.settings.config import TrainConfig
from fsdp_lab.settings.methods import check_compression

_ROOT = Path(__file__).resolve().parents[2]
_WARM_UP_STEPS = 2
_BUSY = 0.5  # runnable processes a core, before the first run


def entered(race: Race, folder: Path, plugin: bytes | None, further: Mapping[str, str]) -> Score | None:
    """Run the race and fill ``folder``, which is not there yet. None where a run did not end well.

    ``further``: what else entry.json is to say. ValueError, before anything runs, for settings that do not go together
    and for machines that cannot do it. What the entry names must be `importable`."""
    why = unavailable()
    if why is not None and not race.task.is_rehearsal:
        raise ValueError(f"a track is an emulated link: {why}")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < race.ranks:
        raise ValueError(f"{race.ranks} ranks have a core each, and this machine gives {len(cores)}")
    cells = race.cells(link=why is None)
    for cell in cells:
        assert isinstance(cell.config, TrainConfig)
        check_compression(cell.config.comm)
    busy = os.getloadavg()[0] / len(cores)
    if busy > _BUSY:
        _say(f"this machine is busy ({busy:.1f} runnable processes a core): times will vary, and be no one's best")
    entries.begin(folder, race, plugin)
    try:
        _warm_up(cells, race.ranks)
        _run(race, cells, folder, Slot(cores=tuple(cores[: race.ranks])))
    except BaseException:
        _say(f"no entry: {folder} has what was run; an entry is one session, so it begins anew in another folder")
        raise
    further = {name: _without_local_paths(text) for name, text in further.items()}
    about = {"label": _label(race), "linked": why is None, "load_before": round(busy, 2), **further, **environment()}
    return _finished(race, folder, about)


def _finished(race: Race, folder: Path, about: Mapping[str, Any]) -> Score | None:
    for path in (*(folder / LOGS).glob("*.txt"), folder / ROWS):
        path.write_text(_without_local_paths(path.read_text(errors="replace")))
    rows = sound_rows(folder / ROWS)
    made = Entry(folder, {}, race, rows, [], {}, None)
    try:
        result = score(race.task, {arm: made.rows_of(arm) for arm in (ENTRY, NONE, BF16)})
    except ValueError as error:
        _say(f"no entry: {error}; {folder} has what was run")
        return None
    entries.finish(folder, race, about, result.plain())
    for line in sentences(result, race.task):
        print(line)
    return result


def _without_local_paths(text: str) -> str:
    """An entry is for others to read: where the checkout and the user's files lie is nobody's business."""
    for place in (_ROOT, Path.cwd(), Path.home()):
        text = text.replace(f"{place}/", "") if len(place.parts) > 1 else text
    return text


def _label(race: Race) -> str:
    settings = race.settings(ENTRY)
    methods = {name: settings[name] for pair in DIRECTIONS.values() for name in pair}
    return label_of({**methods, **{name: value for name, value in race.own.items() if name in FURTHER}})


def _warm_up(cells: Sequence[Cell], ranks: int) -> None:
    """A few steps of the entry and of bf16, without the link: the text is tokenised, and kernels are compiled."""
    for arm in (ENTRY, BF16):
        _say(f"warm-up of {arm}: {_WARM_UP_STEPS} steps, which do not count")
        cell = next(cell for cell in cells if cell.arm.label == arm)
        with tempfile.TemporaryDirectory() as place:
            settings = Path(place) / "config.yaml"
            settings.write_text(cell.config.to_yaml())
            code = train(["--config", str(settings), "--max_steps", str(_WARM_UP_STEPS), "--warmup_steps", "1"], ranks)
        if code:
            raise ValueError(f"{arm}: its warm-up ended with exit code {code}")


def _run(race: Race, cells: list[Cell], folder: Path, slot: Slot) -> None:
    recipe = Recipe(
        name=f"speedrun-{race.track.name}",
        about="",
        trainer=LANGUAGE_MODEL,
        seeds=race.seeds(ENTRY),
        world_sizes=[race.ranks],
        virtual_world_sizes=[],
        links=[cell.link for cell in cells[:1]],
        subjects=[{"model": race.task.fixed["model"]}],
        arms=list({cell.arm.label: cell.arm for cell in cells}.values()),
        common={},
        tune={},
        source={},
    )
    plan = Plan(recipe, cells, {}, [], len(cells))
    progress = Progress(plan, Estimator([], str(folder)), 1, sys.stderr)
    try:
        Runner(plan, folder / ROWS, [slot], progress, logs=folder / LOGS).run()
    finally:
        progress.close()
        shutil.rmtree(folder / f"{ROWS}.cells", ignore_errors=True)
        (folder / f"{ROWS}.lock").unlink(missing_ok=True)


@contextlib.contextmanager
def importable(plugin: bytes | None) -> Iterator[None]:
    """Inside, this process and those that it starts find the plugin's methods by name, as if it were installed.

    ValueError where the file cannot be imported: it is run here."""
    if plugin is None:
        yield
        return
    from experiments.judge.subject import loading
    from experiments.judge.subject.plugin import write_plugin

    before = os.environ.get("PYTHONPATH")
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "code" / entries.PLUGIN
        file.parent.mkdir()
        file.write_bytes(plugin)
        try:
            loading.load(file)
        except Exception as error:  # whatever a stranger's module raises
            raise ValueError(f"{entries.PLUGIN} cannot be imported: {type(error).__name__}: {error}") from None
        offered = Path(place) / "offered"
        write_plugin(offered, file)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(offered), *filter(None, [before])])
        try:
            yield
        finally:
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before


def _say(text: str) -> None:
    print(f"speedrun: {text}", file=sys.stderr, flush=True)
