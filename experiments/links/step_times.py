"""How long training steps take behind one link, methods in turn: the rank's program of `calibrate`, `link_matrix` and
`overlap`.

One start of the ranks serves many methods, which saves a start of Python and torch for each. It is the trainer's own
model, optimizer, hooks and prefetching; only data (random tokens), logging and results rows are left out. Each
method is attached, runs two steps that do not count (or more), then as many as fill a few seconds, and is detached
again.
The weights go on from one method to the next, which no time depends on. Steps are timed as the trainer times them:
forward, backward and update, rank 0's clock.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from comm_compress import labels
from experiments.fidelity.method_settings import Run
from experiments.links.models import model_named, register
from experiments.network.namespaces import Namespaces
from experiments.network.rates_and_delays import parse_rate
from fsdp_lab.ranks.environment import rank_environment
from fsdp_lab.settings.flags import program

Line = dict[str, Any]
PHASES = ("forward", "backward", "update")


class Overlap(NamedTuple):
    """What goes on behind computation, as `comm_compress.attach` takes it."""

    prefetch: int
    overlap_reduce: int


@dataclass(frozen=True)
class Job:
    """What one start of the ranks does: ``runs`` in turn on a ``model`` of `experiments.links.models`, or a preset.

    A method takes at least ``least`` and at most ``most`` steps, and ``seconds`` in between. Each run is measured in
    all ``overlaps``, one after the other, after ``warm_up`` steps that do not count; all of it ``repeats`` times.
    ``shape``: sequences and tokens of a rank's batch; empty: the preset's. Unless ``overlaps`` say otherwise, backward
    waits for each reduce-scatter, as predictions assume it.
    """

    ranks: int
    rate: str
    model: str
    runs: list[Run]
    out: str
    seconds: float = 2.0
    least: int = 4
    most: int = 20
    overlaps: Sequence[Overlap] = (Overlap(prefetch=1, overlap_reduce=0),)
    shape: Sequence[int] = ()
    repeats: int = 1
    warm_up: int = 2

    def steps(self, step_s: float) -> int:
        """How many steps are timed when one step takes ``step_s`` seconds."""
        return max(self.least, min(self.most, math.ceil(self.seconds / step_s)))


def label(run: Run) -> str:
    """The name of a run's two methods with their settings, gradients' first: ``int8 + int4``."""
    gradients, settings, parameters, parameter_settings = run
    return f"{labels.label(gradients, settings)} + {labels.label(parameters, parameter_settings)}"


def bucket_bytes(rate: str) -> float:
    """The bytes that the shaper of `experiments.network.namespaces` lets through at once after a silence."""
    bits = parse_rate(rate)
    return max(bits / 8 * 5e-3, 1 << 16) if bits else 0.0


def measure(job: Job) -> None:
    """Append a JSON line to ``job.out`` for every run, as soon as it is done. RuntimeError when a rank fails."""
    with tempfile.TemporaryDirectory() as folder, Namespaces(job.ranks, job.rate) as net:
        told = Path(folder) / "job.json"
        told.write_text(json.dumps(asdict(job)))
        command = [sys.executable, "-m", "experiments.links.step_times", str(told)]
        if code := net.run(command, rank_environment(job.ranks)):
            raise RuntimeError(f"{job.model}, {job.ranks} ranks at {job.rate}: exit code {code}")


def rank_main(job: Job) -> None:
    """Run one rank: build the model once, then measure every method on it; rank 0 writes the lines."""
    import torch
    from torch.distributed.fsdp import FSDPModule

    from fsdp_lab.models import build_model
    from fsdp_lab.ranks.distributed import join
    from fsdp_lab.settings.config import parse
    from fsdp_lab.settings.models.presets import resolve
    from fsdp_lab.training.optim import build_optimizer

    register()
    chosen = model_named(job.model)
    flags = ["--model", chosen.preset]
    for flag, value in zip(("--batch_size", "--max_length"), job.shape, strict=False):
        flags += [flag, str(value)]
    config = resolve(parse(flags), has_gpu=False)
    with join(config) as ranks:
        model = build_model(config, ranks, chosen.vocabulary, chosen.vocabulary - 1).module
        optimizer = build_optimizer(model, config.optim, total_steps=100_000)
        tokens = torch.randint(chosen.vocabulary, (config.optim.batch_size or 1, config.data.max_length or 1))
        units = [name or "root" for name, module in model.named_modules() if isinstance(module, FSDPModule)]
        for _, run, overlap in product(range(job.repeats), job.runs, job.overlaps):
            before = yardstick_ms(ranks)
            line = Measurement(model, tokens, optimizer, units, run, Overlap(*overlap), config).line(job, ranks)
            line["yardstick_ms"] = max(before, yardstick_ms(ranks))
            if ranks.is_first:
                with Path(job.out).open("a") as file:
                    file.write(json.dumps(line) + "\n")
        ranks.gather(None)  # nobody leaves while another still writes or measures
        sys.stdout.flush()
        os._exit(0)  # gloo's threads may abort a plain exit


def yardstick_ms(ranks: Any) -> float:
    """How fast the machine is just now: rank 0's median time of a fixed product and copy, done by all ranks at once."""
    import torch

    matrix, page = torch.ones(384, 384), torch.ones(1 << 20)
    seconds = []
    ranks.gather(None)
    for _ in range(7):
        start = time.perf_counter()
        matrix @ matrix
        page.clone()
        seconds.append(time.perf_counter() - start)
    return float(ranks.broadcast(statistics.median(seconds) * 1e3))


class Measurement:
    """Measures some steps with one method attached."""

    def __init__(
        self,
        model: Any,
        tokens: Any,
        optimizer: Any,
        units: Sequence[str],
        run: Run,
        overlap: Overlap,
        config: Any,
    ) -> None:
        import comm_compress as cc

        self.model, self.tokens, self.units, self.run, self.config = model, tokens, units, run, config
        self.overlap = overlap
        self.optimizer, self.schedule = optimizer
        gradients, settings, parameters, parameter_settings = run
        self.handle = cc.attach(
            model,
            reduce_scatter=cc.make(gradients, settings),
            all_gather=cc.make(parameters, parameter_settings),
            **overlap._asdict(),
        )
        self.wall: dict[str, list[float]] = {phase: [] for phase in PHASES}
        self.own: dict[str, list[float]] = {phase: [] for phase in PHASES}  # without what the hooks took
        self.unit_forward = dict.fromkeys(units, 0.0)

    def line(self, job: Job, ranks: Any) -> Line:
        """Run the steps, detach the method, and return its line: times in ms a step, bytes a step of rank 0."""
        from fsdp_lab.measure.wire_check import interface_counters  # torch: the rank's, not of who starts it

        for _ in range(job.warm_up):
            ranks.gather(None)
            start = time.perf_counter()
            self._step()
            last = time.perf_counter() - start
        steps = ranks.broadcast(job.steps(last))
        for times in (*self.wall.values(), *self.own.values()):
            times.clear()
        watched = [self._watch(unit) for unit in self.units if unit != "root"]
        before = {(op, unit): self.handle.ledger.totals(op, unit) for op in OPS for unit in self.units}
        interface = interface_counters(("eth0",)).sent_bytes
        for _ in range(steps):
            self._step()
        interface = interface_counters(("eth0",)).sent_bytes - interface
        for hook in (hook for pair in watched for hook in pair):
            hook.remove()
        unit_ops = {
            op: {unit: _ledger(self.handle.ledger.totals(op, unit) - before[op, unit], steps) for unit in self.units}
            for op in OPS
        }
        workspace = self.handle.workspace_bytes
        self.handle.detach()
        whole = [math.fsum(parts) for parts in zip(*self.wall.values(), strict=True)]
        return {
            "model": job.model,
            "ranks": job.ranks,
            "rate": job.rate,
            "method": label(self.run),
            "run": list(self.run),
            **self.overlap._asdict(),
            "warm_up": job.warm_up,
            "steps": steps,
            "step_ms_p50": statistics.median(whole),
            "step_ms": whole,
            "bucket_bytes": bucket_bytes(job.rate),
            "phase_ms": {phase: statistics.median(times) for phase, times in self.wall.items()},
            "own_ms": {phase: statistics.median(times) for phase, times in self.own.items()},
            "unit_forward_ms": {unit: seconds * 1e3 / steps for unit, seconds in self.unit_forward.items()},
            "unit_elements": self._elements(),
            "sent_bytes": {op: sum(unit["sent_bytes"] for unit in units.values()) for op, units in unit_ops.items()},
            "interface_bytes": interface / steps,
            "workspace_bytes": workspace,
            "ops": unit_ops,
        }

    def _step(self) -> None:
        """Run one optimizer step, phase by phase."""
        from fsdp_lab.training.optim import take_step

        def forward() -> Any:
            return self.model(self.tokens) / (self.tokens.shape[0] * (self.tokens.shape[1] - 1))

        loss = self._phase("forward", forward)
        self._phase("backward", loss.backward)
        limit = self.config.optim.max_grad_norm
        self._phase("update", lambda: take_step(self.model, self.optimizer, self.schedule, limit))

    def _phase(self, name: str, work: Any) -> Any:
        hooks, start = self._hook_ms(), time.perf_counter()
        result = work()
        wall = (time.perf_counter() - start) * 1e3
        self.wall[name].append(wall)
        self.own[name].append(wall - (self._hook_ms() - hooks))
        return result

    def _hook_ms(self) -> float:
        totals = self.handle.ledger.totals()
        return totals.encode_ms + totals.wire_ms + totals.decode_ms

    def _watch(self, unit: str) -> tuple[Any, Any]:
        """Time a block's own forward: between FSDP2's hooks, so after its gather."""
        module, started = self.model.get_submodule(unit), [0.0]

        def begin(*_: Any) -> None:
            started[0] = time.perf_counter()

        def end(*_: Any) -> None:
            self.unit_forward[unit] += time.perf_counter() - started[0]

        return module.register_forward_pre_hook(begin), module.register_forward_hook(end)

    def _elements(self) -> dict[str, int]:
        """The number of parameters of every unit; a block's are not the root's."""
        inside = [unit for unit in self.units if unit != "root"]
        sizes = {unit: sum(p.numel() for p in self.model.get_submodule(unit).parameters()) for unit in inside}
        return {"root": sum(p.numel() for p in self.model.parameters()) - sum(sizes.values()), **sizes}


OPS: tuple[Any, ...] = ("reduce_scatter", "all_gather")


def _ledger(totals: Any, steps: int) -> dict[str, float]:
    """What the ledger saw of one unit, for one step."""
    keys = ("calls", "elements", "sent_bytes", "extra_collectives", "encode_ms", "wire_ms", "decode_ms")
    return {key: getattr(totals, key) / steps for key in keys}


if __name__ == "__main__":
    parser = program("experiments.links.step_times", __doc__)
    parser.add_argument("job", type=Path, help="JSON file of what to time, as calibrate and link_matrix write it")
    told = json.loads(parser.parse_args().job.read_text())
    rank_main(Job(**{**told, "runs": [tuple(run) for run in told["runs"]]}))
