"""Which layout and which shares make a step fastest on given devices: measured or read, predicted, and checked.

    python -m experiments.planning --model gpt2-mini --devices devices.json      # machines described in a file
    python -m experiments.planning --model gpt2-mini --ranks 2                   # ranks on this machine, measured
    sudo python -m experiments.planning --ranks 2 --rate 200mbit --quota 1.0 0.33      # a slow link, a slower rank
    sudo python -m experiments.planning --ranks 2 --rate 200mbit --quota 1.0 0.33 --check 12

Compares data parallel ranks (fsdp, ddp), the layouts of `fsdp_lab.parallel` (tp, sp, galaxy, galaxy2) with equal and
with their best shares, and pipelines (gpipe, 1f1b) whose stages have equal and the best numbers of blocks; each without
compression and with ``--activation`` and ``--gradients``. ``--write`` keeps the measured devices for ``--devices``.
With ``--devices`` a ``--rate`` asks what another link would change. ``--check N`` runs the N best candidates, the same
ones with equal shares, and the slowest, for ``--steps`` steps without the optimizer
(`experiments.bench.traffic.layouts`), and prints both times.

Machines of a real network are measured with torchrun: see `fsdp_lab.parallel.planning.measuring.measure`. Columns:

    step ms      of forward, backward, all messages and AdamW: compute + link + update
    MB sent      by the rank that sends most
    memory MB    of each rank: weights, gradients, Adam, activations, and what the program takes without a model
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.bench.traffic.layouts.command import run_arms
from experiments.network.namespaces import unavailable
from experiments.network.rates_and_delays import parse_rate
from experiments.planning import checking
from experiments.planning.measuring import measured
from experiments.runs.quotas import check_quotas
from fsdp_lab.parallel.planning.devices import Devices
from fsdp_lab.parallel.planning.job import Candidate, Job, Methods
from fsdp_lab.parallel.planning.measuring.options import options_of
from fsdp_lab.parallel.planning.plan import ALL, plan
from fsdp_lab.parallel.planning.table import flags, table
from fsdp_lab.settings.flag_values import a_file, new_file, real, whole
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.groups import BETWEEN_REPLICAS
from fsdp_lab.settings.user_errors import unix_endings, user_errors

_PAYLOAD = 1448 / 1514  # of a full Ethernet frame
LEFT_OUT = (
    "planned for AdamW, which exchanges nothing of its own. Left out are local steps (outer), and what other\n"
    "optimizers compute and exchange (operation optimizer of a row): muon under fsdp, beside the gradients; in place\n"
    f"of gradients, between the replicas of ddp, {', '.join(BETWEEN_REPLICAS)}\n"
    "(docs/library/optimizers.md has their bits)"
)


def main(argv: Sequence[str]) -> int:
    """Run ``fsdp-lab plan``; returns the exit code."""
    options = _parser().parse_args(argv)
    with user_errors("plan"):
        _check(options)
        job = Job.of(options.model, options.sequences, options.length, options.micro_batches or 0)
        from fsdp_lab.parallel.planning.measuring.measure import methods_of  # torch and models: not for --help

        both = methods_of(options, job)
        try:
            devices = _devices(options, both)
        except RuntimeError as error:
            print(f"plan: {error}", file=sys.stderr)
            return 1
    candidates = plan(devices, job, [Methods(bits=both.bits), both], options.layouts)
    print(_title(options, job, devices))
    print(table(candidates))
    print(f"\n{LEFT_OUT}")
    if candidates[0].refused:
        print("\nnothing fits: use more ranks, a smaller batch, or fewer tokens")
        return 1
    print(f"\nbest: {flags(candidates[0], job)}")
    if options.check:
        try:
            with user_errors("plan"):
                print("\n" + _checked(candidates, options, job))
        except RuntimeError as error:
            print(f"plan: {error}", file=sys.stderr)
            return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = program("experiments.planning", __doc__)
    options_of(parser)
    parser.add_argument("--ranks", type=whole(2), help="ranks on this machine (default: 2, or those of --devices)")
    parser.add_argument("--devices", type=a_file, help="read devices and link from this file; nothing is measured")
    parser.add_argument("--write", type=new_file(".json"), help="keep what was measured there")
    parser.add_argument("--rate", help="of each rank's link: 200mbit, none (default: this machine's loopback)")
    parser.add_argument("--quota", type=real(above=0), nargs="+", help="processors of each rank: 1.0 0.33")
    parser.add_argument("--memory_mb", type=real(above=0), nargs="+", help="what each rank may use, or one for all")
    parser.add_argument("--layouts", nargs="+", default=list(ALL), choices=ALL)
    parser.add_argument("--micro_batches", type=whole(1), help="of a pipeline (default: at most 4)")
    parser.add_argument(
        "--check", type=whole(1), metavar="N", help="measure the N best candidates and the slowest, too"
    )
    parser.add_argument("--steps", type=whole(1), default=7, help="of --check")
    parser.add_argument("--json", type=new_file(".json"), help="write the table of --check there, too")
    return parser


def _check(options: argparse.Namespace) -> None:
    """ValueError for flags that exclude each other, or do not fit the number of ranks."""
    if options.rate is not None:
        parse_rate(options.rate)
    if options.devices is not None:
        known = Devices.read(options.devices).world
        if options.ranks not in (None, known):
            raise ValueError(f"ranks: {options.ranks} given, and {options.devices} has {known} devices")
        options.ranks = known
        for flag in ("quota", "write"):
            if getattr(options, flag) is not None:
                raise ValueError(f"{flag}: belongs to a measurement, and --devices says that nothing is measured")
        if options.check:
            raise ValueError("check: runs on this machine's ranks, which --devices does not describe; leave one out")
    options.ranks = options.ranks or 2
    if options.quota is not None:
        check_quotas(options.quota, options.ranks)
    if options.memory_mb is not None and len(options.memory_mb) not in (1, options.ranks):
        raise ValueError(
            f"memory_mb: {len(options.memory_mb)} given for {options.ranks} ranks; wants one, or one for each"
        )
    if options.check and (why := unavailable()):
        raise ValueError(f"check: runs the ranks on a network of their own, and {why}")
    if options.json is not None and not options.check:
        raise ValueError("json: is the table of --check, which is not asked for")


def _devices(options: argparse.Namespace, methods: Methods) -> Devices:
    """From the file, or measured; with the limits that the flags set."""
    if options.devices is not None:
        devices = Devices.read(options.devices)
        if options.rate is not None and (bits := parse_rate(options.rate)):
            link = replace(devices.link, mbit_per_s=bits * _PAYLOAD / 1e6, burst_kb=0.0)
            devices = replace(devices, link=link)
    else:
        words = []
        for name in ("model", "sequences", "length", "activation", "gradients", "repeats"):
            words += [f"--{name}", str(getattr(options, name))]
        devices = measured(words, options.ranks, options.rate, options.quota)
        if options.write is not None:
            devices.write(options.write)
    if options.memory_mb is None:
        return devices
    limits = options.memory_mb * (devices.world if len(options.memory_mb) == 1 else 1)
    limited = [replace(device, memory_mb=mb) for device, mb in zip(devices.devices, limits, strict=True)]
    return replace(devices, devices=limited)


def _title(options: argparse.Namespace, job: Job, devices: Devices) -> str:
    link = devices.link
    speeds = ", ".join(f"{device.name} {device.gflops:.3g}" for device in devices.devices)
    exact = devices.are_measured_for(job.model, job.sequences, job.length)
    how = "parts measured" if exact else "parts estimated from gflops: not measured for this model and batch"
    return (
        f"{job.model}, {job.sequences} x {job.length} tokens a step, {devices.world} ranks, micro-batches "
        f"{job.micro_batches}\nGFLOP/s: {speeds} ({how})\n"
        f"link: {link.mbit_per_s:.4g} Mbit/s of payload, {link.latency_ms:.2g} ms, burst {link.burst_kb:.0f} kB\n"
    )


def _checked(candidates: Sequence[Candidate], options: argparse.Namespace, job: Job) -> str:
    """Run the best candidates, and compare. RuntimeError when a rank fails."""
    some = checking.chosen(candidates, options.check)
    took = run_arms(
        checking.arms(some, job.micro_batches),
        job.model,
        options.ranks,
        options.rate or "none",
        options.quota,
        (job.sequences, job.length),
        options.steps,
    )
    lines = checking.beside(some, took)
    if options.json is not None:
        settings = {name: str(v) if isinstance(v, Path) else v for name, v in vars(options).items()}
        options.json.write_text(json.dumps({"settings": settings, "lines": lines}, indent=1) + "\n")
    return checking.table(some, lines)


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
