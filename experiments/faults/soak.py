"""A long run that is killed again and again: does anything leak, stay behind, or get lost?

    python -m experiments.faults.soak --minutes 60 [--kill_every_s 240] [--save_every_s 60] [--out soak.json]

Two ranks train, save a checkpoint about once a minute, and every few minutes something happens to them: a rank or the
launcher is killed, or told to stop. The same command starts them again. In the end one last start is left alone until
it finishes. The summary (JSON, and a few lines of text): how often what happened, the slope of each process's memory
between a start's warm-up and its end, files and processes that should not be there, and rows that are not valid.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from experiments.faults.drills import Drill, Ended
from fsdp_lab import results
from fsdp_lab.results.store import scan
from fsdp_lab.settings.flag_values import new_file, real, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings

RANKS = 2
EVENTS = (("rank 1", signal.SIGKILL), ("launcher", signal.SIGUSR2), ("rank 0", signal.SIGKILL),
          ("launcher", signal.SIGKILL), ("rank 1", signal.SIGTERM))  # fmt: skip
_SAMPLE_S = 2.0
_WARMUP = 0.3  # share of a start's samples left out of its slope: caches and the allocator fill
_LEAST_SAMPLES = 10
_CACHE = "torchinductor_"  # torch's own, one for all runs; meant to stay


@dataclass
class Start:
    """One start of the command. ``memory`` has (seconds, bytes) of each rank's resident memory while it trained."""

    event: str
    code: int = 0
    seconds_to_end: float | None = None
    resumed_at: int = 0
    left: list[str] = field(default_factory=list)
    memory: dict[int, list[tuple[float, int]]] = field(default_factory=dict)

    def slopes(self) -> list[float]:
        """MB an hour by which each rank grew, by least squares; none for a start that was too short to tell."""
        slopes = []
        for samples in self._steady().values():
            seconds, size = zip(*samples, strict=True)
            slopes.append(statistics.linear_regression(seconds, size).slope * 3600 / 1e6)
        return slopes

    def levels(self) -> dict[int, list[int]]:
        """MB of each rank after the warm-up and at the end: medians of a fifth of the samples each."""
        levels = {}
        for rank, samples in self._steady().items():
            sizes, some = [size / 1e6 for _, size in samples], max(1, len(samples) // 5)
            levels[rank] = [round(statistics.median(part)) for part in (sizes[:some], sizes[-some:])]
        return levels

    def _steady(self) -> dict[int, list[tuple[float, int]]]:
        """Each rank's samples after the warm-up, where there are enough of them to tell anything."""
        steady = {rank: samples[int(_WARMUP * len(samples)) :] for rank, samples in self.memory.items()}
        return {rank: samples for rank, samples in steady.items() if len(samples) >= _LEAST_SAMPLES}


class Soak:
    """One run that is started and killed again and again, in ``folder``."""

    def __init__(self, folder: Path, save_steps: int, max_steps: int, flags: dict[str, Any]) -> None:
        self._folder, self._rows_file, self._temporary = folder, folder / "rows.jsonl", folder / "tmp"
        self._settings = {
            "run_name": "soak",
            "output_dir": folder / "out",
            "results_path": self._rows_file,
            "cache_dir": folder / "tokens",
            "comm_compress": "topk",
            "comm_config_json": '{"ratio": 0.05}',
            "model": "gpt2-nano",
            "max_length": 16,
            "batch_size": 2,
            "val_fraction": 0.001,
            "grad_error_every": 0,
            "threads": 1,
            "log_interval": 10,
            "hang_timeout_s": 120,
            "tensorboard": "true",
            "save_steps": save_steps,
            "max_steps": max_steps,
            **flags,
        }
        self.starts: list[Start] = []

    def start(self, event: str, number: signal.Signals | None, after_s: float | None) -> Ended:
        """Start the command. ``after_s`` seconds after its first log line, the ``event`` happens with signal
        ``number``.

        Without ``number`` it is left alone until it finishes."""
        start = Start(event)
        flags = [word for key, value in self._settings.items() for word in (f"--{key}", str(value))]
        drill = Drill(flags, RANKS, temporary=self._temporary)
        begun, over = threading.Event(), threading.Event()
        threads = [threading.Thread(target=self._measure, args=(drill, start, begun, over))]
        if number is not None and after_s is not None:
            threads.append(threading.Thread(target=_strike, args=(drill, event, number, after_s, begun, over)))
        for thread in threads:
            thread.start()

        def on_line(line: str) -> bool:
            if line.startswith("resumed from"):
                start.resumed_at = int(line.rpartition(":")[2].split()[0])
            if line.startswith("step "):
                begun.set()
            return False

        try:
            ended = drill.follow(on_line, timeout_s=24 * 3600)
        finally:
            over.set()
            begun.set()
            for thread in threads:
                thread.join()
        start.code, start.left = ended.code, ended.left
        self.starts.append(start)
        return ended

    def finish(self, steps: int) -> Ended:
        """Start once more, leave the run alone, and let it make ``steps`` steps."""
        saved = max((row["saved_step"] or 0 for row in results.load(self._rows_file)), default=0)
        self._settings |= {"max_steps": saved + steps, "resume_changed": "true"}
        return self.start("left alone", None, None)

    def summary(self, seconds: float) -> dict[str, Any]:
        """What all starts together came to."""
        rows = list(scan(self._rows_file)) if self._rows_file.exists() else []
        sound = [row for _, row, _ in rows if row is not None]
        slopes = [slope for start in self.starts for slope in start.slopes()]
        peaks = [max(size for _, size in samples) for s in self.starts for samples in s.memory.values() if samples]
        checkpoints = self._folder / "out" / "runs" / "soak" / "checkpoints"
        return {
            "seconds": round(seconds),
            "starts": len(self.starts),
            "events": dict(Counter(start.event for start in self.starts)),
            "steps": max((row["steps"] or 0 for row in sound), default=0),
            "finished": bool(sound) and sound[-1]["status"] == "ok",
            "saves": max((row["saves"] or 0 for row in sound), default=0),
            "failed_saves": max((row["failed_saves"] or 0 for row in sound), default=0),
            "rows": dict(Counter(row["status"] for row in sound)),
            "rows_refused": [f"line {number}: {complaints}" for number, row, complaints in rows if row is None],
            "starts_without_row": len(self.starts) - len(rows),
            "processes_left": [text for start in self.starts for text in start.left],
            "files_left": sorted(str(p.relative_to(self._folder)) for p in self._folder.rglob("*") if _is_litter(p)),
            "temporary_left": sorted(p.name for p in self._temporary.iterdir() if not p.name.startswith(_CACHE)),
            "checkpoints": sorted(path.name for path in checkpoints.glob("*")),
            "memory_slope_mb_per_hour": {
                "median": round(statistics.median(slopes), 2) if slopes else None,
                "largest": round(max(slopes), 2) if slopes else None,
                "of": len(slopes),
            },
            "peak_rss_mb": [round(min(peaks) / 1e6), round(max(peaks) / 1e6)] if peaks else [],
            "each_start": [
                {k: v for k, v in asdict(start).items() if k != "memory"} | {"memory_mb": start.levels()}
                for start in self.starts
            ],
        }

    def _measure(self, drill: Drill, start: Start, begun: threading.Event, over: threading.Event) -> None:
        begun.wait()
        pids = drill.rank_processes()
        start.memory = {rank: [] for rank in pids}
        while not over.wait(_SAMPLE_S):
            for rank, pid in pids.items():
                if (size := _resident(pid)) is not None:
                    start.memory[rank].append((time.monotonic(), size))


def _strike(
    drill: Drill, whom: str, number: int, after_s: float, begun: threading.Event, over: threading.Event
) -> None:
    begun.wait()
    if over.wait(after_s):
        return
    pid = drill.pid if whom.startswith("launcher") else drill.rank_processes().get(int(whom.split()[1]))
    if pid is not None:
        os.kill(pid, number)


def _resident(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None


def _is_litter(path: Path) -> bool:
    """Is the file half-written, a checkpoint that a kill left, or a refused row?"""
    return path.name.endswith((".tmp", ".partial", ".rejected", ".damaged", ".replaced", ".abandoned"))


def text(summary: dict[str, Any]) -> str:
    """The summary in a few lines of text."""
    slope = summary["memory_slope_mb_per_hour"]
    lines = [
        f"{summary['seconds'] / 60:.0f} minutes, {summary['starts']} starts, {summary['steps']} steps, "
        f"{summary['saves']} checkpoints ({summary['failed_saves']} failed); "
        + ("finished" if summary["finished"] else "CUT"),
        "events       " + ", ".join(f"{count} x {event}" for event, count in summary["events"].items()),
        "rows         "
        + ", ".join(f"{count} {status}" for status, count in summary["rows"].items())
        + f"; {len(summary['rows_refused'])} refused, {summary['starts_without_row']} starts without one",
        f"memory       median slope {slope['median']} MB an hour, largest {slope['largest']} (of {slope['of']} ranks' "
        f"starts); peaks {summary['peak_rss_mb']} MB",
        f"left behind  {len(summary['processes_left'])} processes, {len(summary['files_left'])} files in the run's "
        f"folder, {len(summary['temporary_left'])} in the temporary folder (a killed launcher's own)",
    ]
    return "\n".join([*lines, *(f"  {name}" for name in (*summary["processes_left"], *summary["files_left"]))])


def is_clean(summary: dict[str, Any]) -> bool:
    """Did the run finish, has every start a valid row, and was nothing left behind?"""
    bad = summary["rows_refused"], summary["processes_left"], summary["files_left"], summary["failed_saves"]
    killed = summary["events"].get(f"launcher {signal.SIGKILL.name}", 0)
    is_tidy = len(summary["temporary_left"]) <= killed  # nobody is left to remove a killed launcher's
    return bool(summary["finished"]) and not any(bad) and is_tidy and summary["starts_without_row"] == 0


def soak(minutes: float, kill_every_s: float, save_steps: int, last_steps: int, folder: Path, **flags: Any) -> Soak:
    """Start the run and let events happen until the time is over, then start it once more until it finishes."""
    run = Soak(folder, save_steps, 10**6, flags)
    end = time.monotonic() + 60 * minutes
    for whom, number in itertools.cycle(EVENTS):
        if time.monotonic() > end:
            break
        event = f"{whom} {number.name}"
        ended = run.start(event, number, kill_every_s)
        print(f"{event}: exit code {ended.code}, went on from {run.starts[-1].resumed_at}", flush=True)
        if ended.code == 2:
            raise RuntimeError("\n".join(ended.output[-10:]))
    run.finish(last_steps)
    return run


def main(argv: list[str]) -> int:
    """Soak, then print what came of it; 1 when something leaked, stayed or was lost."""
    parser = program("experiments.faults.soak", __doc__)
    parser.add_argument("--minutes", type=real(above=0), default=60)
    parser.add_argument("--kill_every_s", type=real(above=0), default=240)
    parser.add_argument("--save_steps", type=whole(1), default=300, help="steps between checkpoints (about a minute)")
    parser.add_argument(
        "--last_steps", type=whole(1), default=50, help="steps that the last start makes until it finishes"
    )
    parser.add_argument("--out", type=new_file(), default=Path("soak.json"))
    arguments = parser.parse_args(argv)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run = soak(arguments.minutes, arguments.kill_every_s, arguments.save_steps, arguments.last_steps, Path(folder))
        summary = run.summary(time.monotonic() - began)
    arguments.out.write_text(json.dumps(summary, indent=1) + "\n")
    print(text(summary))
    return 0 if is_clean(summary) else 1


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
