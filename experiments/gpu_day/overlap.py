"""What of encoding and decoding a model's own kernels hide: one profiled rank whose peer is itself (`loopback`).

    python -m experiments.gpu_day.overlap --out FOLDER [--device cuda] [--model gpt2-62m] [--methods none "int8" ...]

For each method the trainer's own model is sharded over two ranks by FSDP2 and makes a few steps on random tokens; then
steps are timed, and torch.profiler records the last ones: on CUDA every kernel with its stream. FOLDER gets
METHOD/rank0....pt.trace.json.gz (Perfetto opens it), overlap.json and overlap.md, after each method. Compression that
is "hidden" ran while a kernel of the model did; "exposed" is the rest. Messages are copies on the device: communication
is no link's here. The profiler makes every call from Python longer, so only the timed steps say how long a step takes.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.device_mesh import init_device_mesh

from experiments.gpu_day import loopback
from experiments.gpu_day.table import FEW_BITS
from experiments.runs.method_flag import a_method_or_none, folder_name
from fsdp_lab.files.atomic import make_folder, write_bytes, write_json
from fsdp_lab.measure.profiling import Window, phase
from fsdp_lab.models import build_model
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.run.environment import hardware, versions
from fsdp_lab.settings.config import TrainConfig, parse
from fsdp_lab.settings.flag_values import new_folder, whole
from fsdp_lab.settings.flags import Parser, program
from fsdp_lab.settings.models.presets import resolve
from fsdp_lab.settings.user_errors import unix_endings, user_errors
from fsdp_lab.trace import Profile, rank_profile, read
from fsdp_lab.trace.table import table
from fsdp_lab.training.communication import Communication
from fsdp_lab.training.optim import build_optimizer, take_step

METHODS = (
    *("none", "identity + identity", "int8 + int8", "int4 hadamard + delta", "topk ratio=0.01 + delta", *FEW_BITS),
)


def main(argv: Sequence[str]) -> int:
    """Profile every method; returns 1 where one failed."""
    options = _parser().parse_args(argv)
    with user_errors("overlap"):
        if options.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device: torch sees no CUDA device")
        configs = {method: _config(options, method) for method in dict.fromkeys(options.methods)}
        make_folder(options.out, "out")
    record: dict[str, Any] = {"machine": hardware(), "versions": versions(), "transport": loopback.NAME, "methods": {}}
    measured: dict[str, Measured | str] = {}
    with loopback.joined():
        for method, config in configs.items():
            try:
                measured[method] = profiled(config, options, options.out / folder_name(method))
            except Exception as error:  # the others are measured all the same
                measured[method] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            print(f"{method}\n{_details(measured[method])}\n", flush=True)
            record["methods"][method] = _as_json(measured[method])
            write_json(options.out / "overlap.json", record)
            write_bytes(options.out / "overlap.md", page(measured).encode())
    return 1 if any(isinstance(one, str) for one in measured.values()) else 0


class Measured(NamedTuple):
    """What one method took: milliseconds of the timed steps, bytes that a rank would send a step, and the profile."""

    milliseconds: list[float]
    sent_bytes: float
    profile: Profile


def page(measured: Mapping[str, Measured | str]) -> str:
    """All methods in a table, and then each; a text is why a method failed."""
    lines = [
        *("# Compression beside compute", "", f"{loopback.WORLD} ranks, of which one is run: {loopback.NAME}.", ""),
        "Milliseconds of a step: the median of those timed without the profiler. The others are of the device, from",
        "the profile; encoding and decoding are exposed while no kernel of the model runs.",
        "",
        "| method | sent MB a step | ms a step | model's kernels | encoding and decoding | of it exposed |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for method, one in measured.items():
        if not isinstance(one, str):
            times = one.profile.mean.whole
            numbers = (
                f"{one.sent_bytes / 1e6:.1f}" if one.sent_bytes else "not counted",
                f"{statistics.median(one.milliseconds):.1f}",
                *(f"{number:.1f}" for number in (times.compute, times.compression, times.exposed_compression)),
            )
            lines.append(f"| {method} | {' | '.join(numbers)} |")
    for method, one in measured.items():
        lines += ["", f"## {method}", "", "```", _details(one), "```"]
    return "\n".join(lines) + "\n"


def _details(one: Measured | str) -> str:
    if isinstance(one, str):
        return one
    timed = (
        f"{statistics.median(one.milliseconds):.1f} ms a step without the profiler, median of {len(one.milliseconds)}"
    )
    return f"{timed}; a rank sends {one.sent_bytes:,.0f} bytes a step\n{table(one.profile)}"


def _as_json(one: Measured | str) -> dict[str, Any]:
    if isinstance(one, str):
        return {"failed": one}
    return {"ms_a_step": one.milliseconds, "sent_bytes_a_step": one.sent_bytes, **one.profile.to_json()}


def profiled(config: TrainConfig, options: argparse.Namespace, folder: Path) -> Measured:
    """Train with one method, and read what was recorded of the last steps."""
    device = torch.device(options.device, 0) if options.device == "cuda" else torch.device("cpu")
    for old in folder.glob("*.pt.trace.json*"):
        old.unlink()
    mesh = init_device_mesh(device.type, (loopback.WORLD,))
    ranks = Ranks(0, loopback.WORLD, 0, device, loopback.NAME, mesh)
    vocabulary = options.vocab_size
    model = build_model(config, ranks, vocabulary, vocabulary - 1)
    comm = Communication(model, config.comm, config.run.seed)
    unrecorded = options.warm_up + options.timed_steps
    steps, times = unrecorded + options.steps, list[float]()
    optimizer, schedule = build_optimizer(model.updated, config.optim, steps, model.operators["adamw"])
    window = Window(unrecorded + 1, options.steps, folder, rank=0)
    shape = (steps, options.batch_size, options.length)
    tokens = torch.randint(vocabulary - 1, shape, generator=torch.Generator().manual_seed(1)).to(device)
    try:
        for step, batch in enumerate(tokens, 1):
            window.begin_step(step)
            begun = time.perf_counter()
            with phase("forward"):
                loss = model.module(batch) / model.module.num_targets(batch)
            with phase("backward"):
                loss.backward()
            with phase("optimizer"):
                take_step(model.updated, optimizer, schedule, config.optim.max_grad_norm, model.grad_norm)
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - begun))
            window.end_step()
            window.collect(step)
    finally:
        window.close()
    assert window.trace is not None
    profile = Profile([rank_profile(read(window.trace))])
    _compress(window.trace)
    return Measured(times[options.warm_up : unrecorded], comm.totals().sent_bytes / steps, profile)


def _compress(trace: Path) -> None:
    """Replace the trace by its gzipped twin, which the same programs open."""
    write_bytes(trace.with_name(f"{trace.name}.gz"), gzip.compress(trace.read_bytes(), 6))
    trace.unlink()


def _config(options: argparse.Namespace, method: str) -> TrainConfig:
    """The trainer's settings. ValueError where they make no sense."""
    given = {"model": options.model, "batch_size": options.batch_size, "max_length": options.length, "seed": 1}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    return resolve(parse([*words, "--method", method]), has_gpu=options.device == "cuda")


def _parser() -> Parser:
    parser = program("experiments.gpu_day.overlap", __doc__)
    parser.add_argument("--out", type=new_folder, required=True, help="folder for traces and tables")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--model", default="gpt2-62m", help="a preset of docs/trainer/models.md")
    parser.add_argument("--methods", type=a_method_or_none, nargs="+", default=list(METHODS), metavar="METHOD")
    parser.add_argument("--vocab_size", type=whole(3), default=50257, help="token ids that the model embeds, at least")
    parser.add_argument("--batch_size", type=whole(1), default=16, help="sequences of a step")
    parser.add_argument("--length", type=whole(2), default=512, help="tokens of a sequence")
    parser.add_argument("--steps", type=whole(1), default=3, help="steps that are recorded")
    parser.add_argument("--timed_steps", type=whole(1), default=10, help="steps before them that are timed")
    parser.add_argument(
        "--warm_up", type=whole(2), default=4, help="steps before all these: kernels are compiled in them"
    )
    return parser


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
