"""On paper: step times from 8 to 1024 ranks on GPUs, through the same model, with published figures. A prediction.

    python -m analysis.predict.scaling [--json FILE]

No part of this was measured by us. The model is Llama-3-8B's shape under FSDP2 with parameters in bf16, two sequences
of 4096 tokens a GPU. The **computation** takes 6 x parameters x tokens operations at 40 % of an H100's bf16 peak.
**Links** are flat: a GPU's own share of what its server sends, by far the narrowest part of the way; NVLink inside a
server is left out, which favours nobody much but overstates the time of all. **Latency** is NCCL's own cost table for
rings. **Codecs** are assumed to run, against a copy in the GPU's memory, as fast as ours do on a CPU against its copy
(figures of `results/reference/benchmarks/codecs_cpu.json`); their CUDA kernels have not been timed. Reduce-scatters
overlap backward.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.predict.calibration import read_json
from analysis.predict.step_model import Codec, Cost, Link, Method, Model, Unit, step_seconds
from fsdp_lab.settings.flag_values import a_file, new_file
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

SOURCES = {
    "H100 SXM: 989 TFLOP/s dense bf16, 3.35 TB/s": "NVIDIA H100 datasheet",
    "38 to 43 % of the bf16 peak; 400 Gbit/s a GPU; Llama-3-8B: 32 layers, width 4096": "Llama 3, arXiv 2407.21783",
    "p4d.24xlarge: 400 Gbit/s for 8 GPUs": "AWS, Amazon EC2 P4d instances deep dive",
    "ring: 8.4 us + 3.4 us a hop over NVLink + 9.6 us a hop over the network": "NCCL, src/graph/tuning.cc",
    "1 Gbit/s, 10 Gbit/s": "Ethernet; nobody's cluster in particular",
}
PEAK_FLOPS, UTILISATION = 989e12, 0.40
MEMORY_COPY = 3.35e12 / 2  # bytes copied a second: each is read and written
GPUS_A_SERVER = 8
RATES = {"1 Gbit/s": 1e9, "10 Gbit/s": 10e9, "50 Gbit/s (p4d)": 50e9, "400 Gbit/s": 400e9}
WORLDS = (8, 16, 64, 256, 1024)
TOKENS = 2 * 4096
BLOCKS, BLOCK_PARAMETERS, ROOT_PARAMETERS = 32, 218_112_000, 1_050_677_248  # 8.03 billion in all


@dataclass(frozen=True)
class Entry:
    """A predicted step of one method on one network."""

    network: str
    world: int
    method: str
    step_s: float


def llama_8b() -> Model:
    """The units of Llama 8B with the computation of one GPU, a third of it forward. Embeddings cost nothing."""
    per_parameter = 2 * TOKENS / (PEAK_FLOPS * UTILISATION)
    block_s, head_s = BLOCK_PARAMETERS * per_parameter, ROOT_PARAMETERS / 2 * per_parameter
    blocks = [Unit(BLOCK_PARAMETERS, block_s, 2 * block_s)] * BLOCKS
    return Model(Unit(ROOT_PARAMETERS, head_s, 2 * head_s), blocks, prefetch=1, overlap_reduce=True)


def network(bits_per_s: float, world: int) -> Link:
    """The network as a link: a ring's latency, and links that carry what their makers claim."""
    servers = max(world // GPUS_A_SERVER, 1)
    alpha = 8.4e-6 + (world - servers) * 3.4e-6 + (servers - 1) * 9.6e-6
    return Link(bits_per_s / 8, {"exchange": Cost(alpha), "all_reduce": Cost(alpha)})


def methods(benchmark: dict[str, Any]) -> dict[str, Method]:
    """bf16 in both directions, and pairs of methods whose codecs' speed against a copy the benchmark measured."""
    bf16 = Codec(bits=16)
    return {
        "bf16 / bf16 (stock)": Method(bf16, bf16),
        "int8 / int8": Method(codec(benchmark, "int8", 8.125, True), codec(benchmark, "int8", 8.125, False)),
        "int4 / int4": Method(codec(benchmark, "int4", 4.25, True), codec(benchmark, "int4", 4.25, False)),
        "topk 1 % / int4": Method(codec(benchmark, "topk", 0.41, True), codec(benchmark, "int4", 4.25, False)),
    }


def codec(benchmark: dict[str, Any], name: str, bits: float, feedback: bool) -> Codec:
    """Seconds a byte on the GPU, from ratios to a copy of the same bytes. ValueError when the benchmark lacks them."""

    def ratio(operation: str) -> float:
        rows = benchmark["rows"]
        ratios = [
            row["memcpy_ratio"]
            for row in rows
            if (row["method"], row["config"], row["implementation"], row["operation"], row["threads"])
            == (name, {}, "", operation, 1)
        ]
        if not ratios:
            raise ValueError(f"--codecs: no row for {name}, {operation}; make it with fsdp-lab bench codecs")
        return float(ratios[0])

    encode = 1 / (ratio("encode with feedback" if feedback else "encode") * MEMORY_COPY)
    decode = 1 / (ratio("sum W=8" if feedback else "sum W=2") * MEMORY_COPY)
    return Codec(bits=bits, encode_s_per_byte=encode, decode_s_per_byte=decode)


def predict(benchmark: dict[str, Any]) -> list[Entry]:
    """The predictions for every network, world size and method."""
    model, chosen = llama_8b(), methods(benchmark)
    return [
        Entry(name, world, method, step_seconds(model, chosen[method], network(rate, world), world))
        for name, rate in RATES.items()
        for world in WORLDS
        for method in chosen
    ]


def table(entries: Sequence[Entry]) -> str:
    """The predictions in Markdown: seconds a step, and how many times faster than bf16."""
    names = list(dict.fromkeys(entry.method for entry in entries))
    times = {(e.network, e.world, e.method): e.step_s for e in entries}
    lines = ["| a GPU's link | ranks | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    for place, world in dict.fromkeys((e.network, e.world) for e in entries):
        base = times[place, world, names[0]]
        cells = [f"{base:.2f} s", *(f"{(t := times[place, world, n]):.2f} s ({base / t:.2f}x)" for n in names[1:])]
        lines.append(f"| {place} | {world} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Print the table with its sources."""
    parser = program("analysis.predict.scaling", __doc__)
    parser.add_argument("--codecs", type=a_file, default=Path("results/reference/benchmarks/codecs_cpu.json"))
    parser.add_argument("--json", type=new_file())
    options = parser.parse_args(argv)
    with user_errors("scaling"):
        entries = predict(read_json(options.codecs))
    compute = llama_8b().compute_s
    print(f"PREDICTION, not measured: Llama-3-8B, {TOKENS} tokens a GPU, {compute:.2f} s of computation a step\n")
    print(table(entries))
    print("\nFrom published figures:")
    for figure, source in SOURCES.items():
        print(f"- {figure}: {source}")
    if options.json is not None:
        options.json.write_text(json.dumps([vars(e) for e in entries], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
