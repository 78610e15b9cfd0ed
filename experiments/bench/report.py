"""How long a report takes, and how much memory, as rows grow in number.

    python -m experiments.bench.report [--rows 1000 4000 50000] [--shape seeds arms settings] [--json FILE]

makes rows out of a committed one, with other arms, seeds or settings and losses, and for each number of rows runs
`analysis.report` on them in a process of its own. Rows say of themselves that they are planted; what the report shows
of them means nothing. ``seeds``: 4 settings of 10 arms, the rest of the rows are seeds. ``arms``: one setting of 3
seeds, the rest are arms. ``settings``: settings of 10 arms with 3 seeds each, as many as it takes.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fsdp_lab.settings.flag_values import new_file, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_pipes, user_errors

TEMPLATE = Path(__file__).resolve().parents[2] / "results/reference/bar.jsonl"
PLAIN = ("none", "identity", "bf16")
METHODS = ("int8", "int4", "fp8", "topk", "nc", "qsgd", "onebit")
SPREAD, PAIRED_SPREAD = 0.01, 0.003  # nats: of a seed's luck, and of what an arm adds to it
SHAPES = ("seeds", "arms", "settings")
Cell = tuple[int, int, int]  # setting, arm, seed


def planted(count: int, shape: str) -> Iterator[dict[str, Any]]:
    """``count`` rows of which every arm's difference to the baseline is known by its number."""
    template = json.loads(TEMPLATE.read_text().splitlines()[0])
    generator = random.Random(8)
    luck: dict[tuple[int, int], float] = {}
    for number, (setting, arm, seed) in enumerate(itertools.islice(cells(count, shape), count)):
        shared = luck.setdefault((setting, seed), generator.gauss(0, SPREAD))
        loss = 4.7 + shared + 0.002 * min(arm, 20) + generator.gauss(0, PAIRED_SPREAD)
        yield _row(template, number, (setting, arm, seed), loss)


def cells(count: int, shape: str) -> Iterator[Cell]:
    """The cells of ``count`` rows in one of ``SHAPES``: setting, arm and seed of each."""
    arms = len(PLAIN) + len(METHODS)
    if shape == "seeds":
        return itertools.product(range(4), range(arms), range(-(-count // (4 * arms))))
    if shape == "arms":
        return ((0, arm, seed) for seed in range(3) for arm in range(-(-count // 3)))
    return itertools.product(range(-(-count // (3 * arms))), range(arms), range(3))


def _row(template: dict[str, Any], number: int, cell: Cell, loss: float) -> dict[str, Any]:
    setting, arm, seed = cell
    names = (*PLAIN, *METHODS)
    method, settings = names[arm % len(names)], {"block_size": 64 + arm} if arm >= len(names) else {}
    config = template["config"] | {
        "comm_compress": method,
        "param_compress": method,
        "comm_config_json": settings,
        "param_config_json": {},
        "seed": seed,
        "max_steps": 400 + setting,
    }
    day, second = divmod(60 * number, 86400)
    return template | {
        "run_name": f"planted-{setting}-{arm}-{seed}",
        "time_utc": f"{2000 + day // 336}-{1 + day // 28 % 12:02d}-{1 + day % 28:02d}T"
        f"{second // 3600:02d}:{second // 60 % 60:02d}:00+00:00",
        "wall_time_s": 50.0,
        "compress_method": method,
        "param_compress_method": method,
        "compress_config": settings,
        "seed": seed,
        "config": config,
        "data_digest": f"{seed:032x}",
        "val_loss": loss,
        "val_ppl": math.exp(loss),
        "loss_curve": None,
        "dataset": "planted for a benchmark",
    }


def measured(count: int, shape: str, folder: Path) -> dict[str, Any]:
    """Wall and processor seconds and peak memory of the report's process on ``count`` rows; GB are 1e9 bytes."""
    file = folder / f"{count}.jsonl"
    with file.open("w") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in planted(count, shape))
    words = ["-m", "analysis.report", str(file), "--out", str(folder / f"report-{count}"), "--formats", "svg"]
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
        "rows_mb": round(file.stat().st_size / 1e6, 1),
        "wall_s": round(seconds, 1),
        "processor_s": round(used.ru_utime + used.ru_stime, 1),
        "peak_gb": round(used.ru_maxrss * 1024 / 1e9, 2),
    }


def main(argv: Sequence[str]) -> int:
    """Make the rows, report on them, print what that took."""
    parser = program("experiments.bench.report", __doc__)
    parser.add_argument("--rows", type=whole(1), nargs="+", default=[1000, 4000, 50000], metavar="N")
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["seeds"])
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
            one = measured(count, shape, Path(folder))
            reports.append(one)
            numbers = f"{one['rows_mb']:8.1f}{one['wall_s']:8.1f}{one['processor_s']:8.1f}{one['peak_gb']:9.2f}"
            print(f"{count:7d}  {shape:10s}{numbers}", flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps({"load_a_core": round(load, 1), "reports": reports}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
