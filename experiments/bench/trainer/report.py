"""How long a report takes, and how much memory, as rows grow in number.

    fsdp-lab bench report [--rows 1000 4000 50000] [--shape seeds arms settings ...] [--formats svg]
        [--json FILE]

makes rows out of a committed one, with other arms, seeds or settings and losses, and for each number of rows runs
`analysis.report` on them in a process of its own. Rows say of themselves that they are planted; what the report shows
of them means nothing.

    seeds     4 settings of 10 arms, the rest of the rows are seeds
    arms      one setting of 3 seeds, the rest are arms
    settings  settings of 10 arms with 3 seeds each, as many as it takes
    links     the same, each setting behind 5 links
    models    the same, of as many models as it takes, each on 2, 4 and 8 ranks
    mixed     one setting; arms that compress one of four things (gradients and parameters, local steps,
              activations, what an optimizer gathers), each with bytes of its own and 3 of 8 seeds; some diverged
    curves    as seeds, and every run has a curve file of 40 lines
    unfair    half of the rows one setting of arms with two learning rates, half settings of 10 arms, two in three
              without a baseline; and much that the checks look for is wrong: runs that met, failed or warmed up too
              little, other commits, bytes that the interface did not see
    drafts    rows of drafts, half of them one setting, half settings of 10 arms
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fsdp_lab.settings.flag_values import new_file, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

REFERENCE = Path(__file__).resolve().parents[3] / "results/reference"
TEMPLATE, DRAFT = REFERENCE / "fresh_weights/bar.jsonl", REFERENCE / "drafts/drafts.jsonl"
PLAIN = ("none", "identity", "bf16")
METHODS = ("int8", "int4", "fp8", "topk", "nc", "qsgd", "onebit")
SPREAD, PAIRED_SPREAD = 0.01, 0.003  # nats: of a seed's luck, and of what an arm adds to it
SHAPES = ("seeds", "arms", "settings", "links", "models", "mixed", "curves", "unfair", "drafts")
RATES = (2e7, 1e8, 2e8, 1e9, None)  # bit/s
WORLDS = (2, 4, 8)
MANY_SEEDS = 8  # of a baseline whose rivals have 3 of them
DIVERGED_EVERY = 97  # arms of `mixed` have a run that diverged
LOGGED, EVALUATED = 36, 4  # lines of a curve


class Cell(NamedTuple):
    """One run of a plan. ``kind``: what the arm compresses (`KINDS`); None: gradients and parameters, by one method."""

    setting: int
    arm: int
    seed: int
    rate: float | None = None
    world: int = 2
    is_model: bool = False
    kind: int | None = None
    learning_rate: float | None = None  # None: the template's


def planted(count: int, shape: str) -> Iterator[dict[str, Any]]:
    """``count`` rows of which every arm's difference to the baseline is known by its number."""
    template = json.loads((DRAFT if shape == "drafts" else TEMPLATE).read_text().splitlines()[0])
    generator = random.Random(8)
    luck: dict[tuple[Any, ...], float] = {}
    for number, cell in enumerate(itertools.islice(cells(count, shape), count)):
        shared = luck.setdefault((cell.setting, cell.seed), generator.gauss(0, SPREAD))
        loss = 4.7 + shared + 0.002 * min(cell.arm, 20) + generator.gauss(0, PAIRED_SPREAD)
        row = _row(template, number, cell, loss)
        more = {"curves": _with_curve, "unfair": _wrong, "drafts": _of_a_draft}.get(shape)
        yield row if more is None else row | more(row, number)


def cells(count: int, shape: str) -> Iterator[Cell]:
    """The cells of ``count`` rows, or a few more, in one of ``SHAPES``."""
    arms, seeds = len(PLAIN) + len(METHODS), 3
    if shape in ("seeds", "curves"):
        of_seeds = itertools.product(range(4), range(arms), range(-(-count // (4 * arms))))
        return itertools.starmap(Cell, of_seeds)
    if shape == "arms":
        return (Cell(0, arm, seed) for seed in range(seeds) for arm in range(-(-count // seeds)))
    if shape == "mixed":
        return _mixed(seeds)
    if shape in ("unfair", "drafts"):
        return _two_halves(count, arms, seeds, (1e-3, 2e-3) if shape == "unfair" else (None,))
    if shape == "links":
        settings = range(-(-count // (seeds * arms * len(RATES))))
        return itertools.starmap(Cell, itertools.product(settings, range(arms), range(seeds), RATES))
    if shape == "models":
        models = range(-(-count // (seeds * arms * len(WORLDS))))
        of_models = itertools.product(models, range(arms), range(seeds), [None], WORLDS, [True])
        return itertools.starmap(Cell, of_models)
    return itertools.starmap(Cell, itertools.product(range(-(-count // (seeds * arms))), range(arms), range(seeds)))


def _mixed(seeds: int) -> Iterator[Cell]:
    """The plain arms with all seeds, then arms without an end, with a few seeds each."""
    yield from (Cell(0, arm, seed) for arm in range(len(PLAIN)) for seed in range(MANY_SEEDS))
    for arm in itertools.count(len(PLAIN)):
        for seed in sorted(random.Random(arm).sample(range(MANY_SEEDS), seeds)):
            yield Cell(0, arm, seed, kind=arm % len(KINDS))


def _two_halves(count: int, arms: int, seeds: int, tried: Sequence[float | None]) -> Iterator[Cell]:
    """One setting of arms at every rate that was tried; settings, where one was; two in three without a baseline, where
    several were."""
    for arm, seed, rate in itertools.product(range(count // (2 * seeds * len(tried))), range(seeds), tried):
        yield Cell(0, arm, seed, learning_rate=rate)
    for setting in itertools.count(1):
        has_baseline = len(tried) == 1 or setting % 3 == 0
        for arm, seed in itertools.product(range(0 if has_baseline else 1, arms), range(seeds)):
            yield Cell(setting, arm, seed, learning_rate=tried[0])


def _with_curve(row: dict[str, Any], number: int) -> dict[str, Any]:
    return {"loss_curve": f"curves/{row['run_name']}.jsonl"}


def _wrong(row: dict[str, Any], number: int) -> dict[str, Any]:
    """What checks find: of the run before and of the one after (runs begin a minute apart), and of some rows."""
    wrong = {"wall_time_s": 90.0, "warmup_steps_excluded": 2, "git_commit": f"{number % 7:040x}"}
    wrong |= {"git_dirty": number % 11 == 0, "bytes_trusted": number % 13 != 0}
    wrong |= {"data_digest": None} if number % 5 == 0 else {}
    died = {"status": "failed", "error": f"rank {number % 4} died", "val_loss": None, "val_ppl": None}
    return wrong | (died if number % 17 == 0 else {})


def _of_a_draft(row: dict[str, Any], number: int) -> dict[str, Any]:
    """An acceptance length in place of the loss."""
    return {"val_loss": None, "val_ppl": None, "tau": math.exp(5 - row["val_loss"]), "tau_prompts": 32}


def _row(template: dict[str, Any], number: int, cell: Cell, loss: float) -> dict[str, Any]:
    name = f"planted-{cell.setting}-{cell.arm}-{cell.seed}-{cell.rate or 0:g}-{cell.world}"
    name += "" if cell.learning_rate is None else f"-{cell.learning_rate:g}"
    config = template["config"] | _sent(cell) | {"seed": cell.seed, "run_name": name}
    config |= {"model": f"model-{cell.setting}"} if cell.is_model else {"max_steps": 400 + cell.setting}
    config |= {} if cell.learning_rate is None else {"learning_rate": cell.learning_rate}
    day, second = divmod(60 * number, 86400)
    return (
        template
        | {
            "run_name": name,
            "time_utc": f"{2000 + day // 336}-{1 + day // 28 % 12:02d}-{1 + day % 28:02d}T"
            f"{second // 3600:02d}:{second // 60 % 60:02d}:00+00:00",
            "wall_time_s": 50.0,
            "world_size": cell.world,
            "link_rate_asked": cell.rate,
            "model": config.get("model", template["model"]),
            "compress_method": config["comm_compress"],
            "param_compress_method": config["param_compress"],
            "compress_config": config["comm_config_json"],
            "seed": cell.seed,
            "config": config,
            "data_digest": f"{cell.seed:032x}",
            "val_loss": loss,
            "val_ppl": math.exp(loss),
            "loss_curve": None,
            "dataset": "planted for a benchmark",
        }
        | (_own_bytes(template, cell) if cell.kind is not None else {})
    )


def _sent(cell: Cell) -> dict[str, Any]:
    """The settings of the cell's arm."""
    names = (*PLAIN, *METHODS)
    if cell.kind is not None:
        return {"comm_compress": "none", "param_compress": "none"} | KINDS[cell.kind](cell.arm)
    settings = {"block_size": 64 + cell.arm} if cell.arm >= len(names) else {}
    method = names[cell.arm % len(names)]
    both = {"comm_compress": method, "param_compress": method}
    return both | {"comm_config_json": settings, "param_config_json": {}}


KINDS: tuple[Callable[[int], dict[str, Any]], ...] = (
    lambda arm: {"comm_compress": "int4", "comm_config_json": {"block_size": 64 + arm}, "param_compress": "delta"},
    lambda arm: {"outer": "diloco", "outer_every": 10 + arm, "outer_compress": "int4 hadamard"},
    lambda arm: {"activation": f"int4 block_size={64 + arm}", "activation_grad": "bf16"},
    lambda arm: {"optimizer_compress": f"int8 block_size={64 + arm}"},
)


def _own_bytes(template: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """What the arm sent, which no other arm sends as much of; and, of some arms, a run that diverged."""
    share = 1 / (2 + 30 * random.Random(cell.arm).random())
    by_op = {op: round(share * sent) for op, sent in template["bytes_raw_by_op"].items()}
    sent = {"bytes_compressed_by_op": by_op, "bytes_compressed_total": sum(by_op.values())}
    diverged = {"val_loss": None, "val_ppl": None, "nonfinite_fields": ["val_loss", "val_ppl"]}
    return sent | (diverged if cell.arm % DIVERGED_EVERY == 0 and cell.seed % 2 else {})


def curve(row: dict[str, Any]) -> str:
    """A curve file for a planted row: losses that fall to its own."""
    lines: list[dict[str, Any]] = []
    every = row["config"]["max_steps"] // LOGGED
    for number in range(1, LOGGED + 1):
        here = {"step": every * number, "train_seconds": 0.1 * every * number, "tokens": 1024 * every * number}
        now = row["val_loss"] + 3 * (1 - number / LOGGED)
        lines.append({**here, "train_loss": now, "grad_norm": 1.0, "learning_rate": 1e-3})
        if number % (LOGGED // EVALUATED) == 0:
            lines.append({**here, "val_loss": now, "val_ppl": math.exp(now)})
    return "".join(json.dumps(line) + "\n" for line in lines)


def measured(count: int, shape: str, folder: Path, formats: str = "svg") -> dict[str, Any]:
    """Wall and processor seconds and peak memory of the report's process on ``count`` rows; GB are 1e9 bytes."""
    file = folder / f"{count}.jsonl"
    (folder / "curves").mkdir(exist_ok=True)
    with file.open("w") as stream:
        for row in planted(count, shape):
            stream.write(json.dumps(row) + "\n")
            if row["loss_curve"] is not None:
                (folder / row["loss_curve"]).write_text(curve(row))
    words = ["-m", "analysis.report", str(file), "--out", str(folder / f"report-{count}"), "--formats", formats]
    started = time.perf_counter()
    said = folder / "said.txt"
    with said.open("wb") as stderr:
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=stderr)
        _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if status:
        raise ValueError(f"the report on {count} rows failed: {said.read_text()[-300:]}")
    return {
        "rows": count,
        "shape": shape,
        "formats": formats,
        "rows_mb": round(file.stat().st_size / 1e6, 1),
        "wall_s": round(seconds, 1),
        "processor_s": round(used.ru_utime + used.ru_stime, 1),
        "peak_gb": round(used.ru_maxrss * 1024 / 1e9, 2),
    }


def main(argv: Sequence[str]) -> int:
    """Make the rows, report on them, print what that took."""
    parser = program("experiments.bench.trainer.report", __doc__)
    parser.add_argument("--rows", type=whole(1), nargs="+", default=[1000, 4000, 50000], metavar="N")
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["seeds"], help="described above")
    parser.add_argument("--formats", default="svg", help="of figures: svg,pdf,png is what a report draws by default")
    parser.add_argument("--json", type=new_file(), metavar="FILE", help="write the figures there, too")
    options = parser.parse_args(argv)
    reports = []
    with user_errors("bench_report"), tempfile.TemporaryDirectory() as folder:
        if min(options.rows) < 1:
            raise ValueError("--rows: wants numbers above 0")
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        print(f"load of the machine: {load:.1f} a core; on a shared one read processor seconds")
        print(f"{'rows':>7s}  {'shape':10s}{'MB':>8s}{'wall s':>8s}{'CPU s':>8s}{'peak GB':>9s}")
        for shape, count in itertools.product(options.shape, options.rows):
            one = measured(count, shape, Path(folder), options.formats)
            reports.append(one)
            numbers = f"{one['rows_mb']:8.1f}{one['wall_s']:8.1f}{one['processor_s']:8.1f}{one['peak_gb']:9.2f}"
            print(f"{count:7d}  {shape:10s}{numbers}", flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps({"load_a_core": round(load, 1), "reports": reports}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
