"""Step times and bytes of one model divided over ranks in every layout, behind a link, compressed or not.

    sudo python -m experiments.bench.layouts [--model gpt2-mini] [--ranks 2] [--rate 200mbit] [--sequences 4]
        [--length 128] [--layouts fsdp ddp tp sp galaxy galaxy2] [--methods none int8] [--gradients int8] [--steps 5]
        [--json FILE]

One network namespace a rank, its link shaped to the rate. Every arm computes loss and gradients of the same batch
(``sequences`` of random tokens): data parallel ones (fsdp, ddp) some sequences on each rank, the layouts of
`fsdp_lab.parallel` all sequences with a part of the model, or of the positions. ``methods`` carry activations and their
gradients; ``gradients`` carries parameters' gradients, of data parallel arms and of what a layout replicates, and in
fsdp also the parameters ("none": as they are). No optimizer step is made. Columns:

    step        milliseconds of the median step, rounds of all arms interleaved
    link        milliseconds that rank 0's link needs for them: the interface's bytes over the rate
    counted     bytes that rank 0 sent in a step, as our ledgers count them; -: torch's own collectives
    interface   bytes that its interface sent, headers included
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers.modeling_utils import PreTrainedModel

import comm_compress as cc
from experiments.network.namespaces import Namespaces
from experiments.network.units import parse_rate
from fsdp_lab.data.batches.masked.masking import IGNORED, num_chosen
from fsdp_lab.measure.wire_check import interface_counters
from fsdp_lab.models.architectures.choice import objective
from fsdp_lab.models.architectures.families import blocks_of, family_of, new_config
from fsdp_lab.parallel.choice import divided_model
from fsdp_lab.parallel.layouts import LAYOUTS
from fsdp_lab.parallel.wiring import Wiring
from fsdp_lab.ranks.environment import rank_environment
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.masked import MASKED
from fsdp_lab.settings.presets import PRESETS, unknown_preset
from fsdp_lab.settings.user_errors import unix_pipes, user_errors

DATA_PARALLEL = ("fsdp", "ddp")


@dataclass
class Arm:
    """One way to run the model: ``step`` computes all gradients; ``ledgers`` count what our collectives send."""

    layout: str
    method: str
    step: Callable[[], object]
    ledgers: list[cc.Ledger]

    def counted(self) -> int:
        """Bytes that this rank sent by our collectives so far."""
        return sum(ledger.totals().sent_bytes for ledger in self.ledgers)


def whole_model(preset: str) -> PreTrainedModel:
    """The model of a preset with random weights, the same on every rank."""
    chosen = PRESETS[preset]
    config = new_config(
        chosen.family, **{**chosen.shape, "vocab_size": _vocabulary(preset)}, bos_token_id=0, eos_token_id=0
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    return family_of(config).model(config)


def random_batch(preset: str, rows: int, length: int) -> Tensor:
    """Random tokens; for a BERT also types, masks and labels, as its data has them."""
    tokens = torch.randint(_vocabulary(preset), (rows, length), generator=torch.Generator().manual_seed(1))
    if PRESETS[preset].family not in MASKED:
        return tokens
    labels = torch.full_like(tokens, IGNORED)
    labels[:, 1 : 1 + num_chosen(length)] = tokens[:, 1 : 1 + num_chosen(length)]
    labels[:, 0] = torch.arange(rows) % 2
    return torch.stack([tokens, (torch.arange(length) >= length // 2).long().expand(rows, length), labels], -1)


def _vocabulary(preset: str) -> int:
    chosen = PRESETS[preset]
    return int(chosen.shape.get("vocab_size") or chosen.vocab_size or 50257)


def data_parallel(kind: str, gradients: str, preset: str, batch: Tensor) -> Arm:
    """FSDP2 or DDP, each rank with its sequences of the batch."""
    module: Any = objective(whole_model(preset))
    mine = batch.chunk(dist.get_world_size())[dist.get_rank()]
    targets, method = module.num_targets(mine), None if gradients == "none" else gradients
    ledgers = []
    if kind == "ddp":
        module = DistributedDataParallel(module)
        if method is not None:
            ledgers.append(cc.ddp.attach(module, method).ledger)
    else:
        for block in blocks_of(module.hf).values():
            fully_shard(block)
        fully_shard(module)
        if method is not None:
            ledgers.append(cc.attach(module, reduce_scatter=method, all_gather=method).ledger)

    def step() -> None:
        module.zero_grad()
        (module(mine) / targets).backward()

    return Arm(kind, gradients, step, ledgers)


def in_layout(layout: str, method: str, gradients: str, preset: str, batch: Tensor) -> Arm:
    """A layout of `fsdp_lab.parallel`: every rank has all sequences, and a part of the model or of the positions."""
    carrier, exact = (None, None) if method == "none" else (method, "identity")
    group, world = dist.group.WORLD, dist.get_world_size()
    activations, exact_places = cc.parallel.Activations(carrier, carrier), cc.parallel.Activations(exact, exact)
    model = divided_model(whole_model(preset), Wiring(LAYOUTS[layout], group, [1] * world, activations, exact_places))
    replicas = cc.parallel.ReplicatedGradients(model.replicated(), group, None if gradients == "none" else gradients)

    def step() -> None:
        model.zero_grad()
        (model(batch) / model.num_targets(batch)).backward()
        replicas.reduce()

    name = method if gradients == "none" or not model.division.summed else f"{method} + {gradients}"
    return Arm(layout, name, step, [activations.ledger, exact_places.ledger, replicas.ledger])


def rank_main(options: argparse.Namespace) -> None:
    """One rank: every arm, its steps interleaved with the others'; rank 0 writes the measurements."""
    dist.init_process_group("gloo")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    batch = random_batch(options.model, options.sequences, options.length)
    arms = []
    for layout in options.layouts:
        if layout in DATA_PARALLEL:
            both = dict.fromkeys(("none", options.gradients))
            arms += [data_parallel(layout, method, options.model, batch) for method in both]
        else:
            for method in options.methods:
                gradients = "none" if method == "none" else options.gradients
                arms.append(in_layout(layout, method, gradients, options.model, batch))
    lines = measured(arms, options.steps)
    if dist.get_rank() == 0:
        options.as_rank.write_text(json.dumps(lines))
    dist.barrier()
    os._exit(0)


def measured(arms: list[Arm], steps: int) -> list[dict[str, Any]]:
    """The figures of every arm: medians of ``steps`` steps after one that compiles and allocates."""
    for arm in arms:
        arm.step()
    seconds: list[list[float]] = [[] for _ in arms]
    counted, interface = [0] * len(arms), [0] * len(arms)
    for _ in range(steps):
        for i, arm in enumerate(arms):
            dist.barrier()
            counted_before, sent_before, start = arm.counted(), _interface_bytes(), time.perf_counter()
            arm.step()
            seconds[i].append(time.perf_counter() - start)
            dist.barrier()
            counted[i] += arm.counted() - counted_before
            interface[i] += _interface_bytes() - sent_before
    return [
        {
            "layout": arm.layout,
            "method": arm.method,
            "step_s": statistics.median(seconds[i]),
            "counted_bytes": counted[i] // steps or None,
            "interface_bytes": interface[i] // steps,
        }
        for i, arm in enumerate(arms)
    ]


def _interface_bytes() -> int:
    return interface_counters(("eth0",)).sent_bytes


def table(lines: list[dict[str, Any]], rate_bytes: float | None) -> str:
    """The measurements as a table."""
    rows = [f"{'layout':10s}{'carried by':24s}{'step ms':>10s}{'link ms':>10s}{'counted MB':>13s}{'interface MB':>14s}"]
    for line in lines:
        link = f"{1e3 * line['interface_bytes'] / rate_bytes:.0f}" if rate_bytes else "-"
        counted = f"{line['counted_bytes'] / 1e6:.2f}" if line["counted_bytes"] else "-"
        rows.append(
            f"{line['layout']:10s}{line['method']:24s}{1e3 * line['step_s']:10.0f}{link:>10s}{counted:>13s}"
            f"{line['interface_bytes'] / 1e6:14.2f}"
        )
    return "\n".join(rows)


def main() -> int:
    """Build the network, run the ranks in it, print the table."""
    parser = program("experiments.bench.layouts", __doc__)
    parser.add_argument("--model", default="gpt2-mini")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--sequences", type=int, default=4, help="sequences of the whole batch")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--layouts", nargs="+", default=[*DATA_PARALLEL, *LAYOUTS], choices=[*DATA_PARALLEL, *LAYOUTS])
    parser.add_argument("--methods", nargs="+", default=["none", "int8"])
    parser.add_argument("--gradients", default="int8")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--as-rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank is not None:
        rank_main(options)
    with user_errors("bench_layouts"), tempfile.TemporaryDirectory() as folder:
        check(options)
        out = Path(folder) / "lines.json"
        words = [word for word in sys.argv[1:] if word]
        command = [sys.executable, "-m", "experiments.bench.layouts", *words, "--as-rank", str(out)]
        with Namespaces(options.ranks, options.rate) as net:
            code = net.run(command, rank_environment(options.ranks))
        if code:
            return code
        lines = json.loads(out.read_text())
    bits = parse_rate(options.rate)
    print(
        f"{options.model}, {options.ranks} ranks, {options.rate}, {options.sequences} x {options.length} tokens a step"
    )
    print(table(lines, bits / 8 if bits else None))
    if options.json is not None:
        settings = {key: value for key, value in vars(options).items() if key not in ("json", "as_rank")}
        options.json.write_text(json.dumps({"settings": settings, "lines": lines}, indent=2) + "\n")
    return 0


def check(options: argparse.Namespace) -> None:
    """ValueError for what the ranks could only fail at."""
    if complaint := unknown_preset(options.model):
        raise ValueError(complaint)
    for flag in ("ranks", "sequences", "length", "steps"):
        if getattr(options, flag) < (2 if flag in ("ranks", "length") else 1):
            raise ValueError(f"{flag}: got {getattr(options, flag)}, which is too few")
    if options.sequences % options.ranks:
        raise ValueError(f"sequences: {options.sequences} do not divide among {options.ranks} data parallel ranks")
    for method in (*options.methods, options.gradients):
        if method != "none":
            cc.make(method)


if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main())
