"""What compression gained behind each link: measured, from the cells of `experiments.links.matrix`.

    python -m analysis.predict.speedup MATRIX.jsonl [--model blocks] [--json FILE]

For each rate and number of ranks: the method with the shortest step (both directions compressed below 16 bits), over
the faster of `none` and `identity`, and over bf16 in both directions. **Of what the bytes allow** is the step that this
method would have if only its own bytes over the link's rate and what the rank computes took time, over the step that
it had: its codec, the latency of its messages and what the link does not carry are what is missing to 1.
**Communication** is the share of the faster baseline's step that is not its computation.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from analysis.predict.calibration import NONE, read_json
from analysis.predict.predictor import BF16, parse_rate
from fsdp_lab.settings.flag_values import a_file, new_file
from fsdp_lab.settings.flags import program
from fsdp_lab.settings.user_errors import unix_endings, user_errors

IDENTITY = "identity + identity"
AIMS = {"100mbit": 6.0, "200mbit": 5.0, "1gbit": 2.0}
AIM_ALLOWED = 0.85
Cell = dict[str, Any]


@dataclass(frozen=True)
class Speedup:
    """One rate and world size. ``over_*`` is the step time of that baseline over that of ``method``."""

    model: str
    ranks: int
    rate: str
    method: str
    baseline: str
    over_baseline: float
    over_bf16: float
    of_allowed: float
    communication: float


def speedups(cells: Sequence[Cell], model: str) -> list[Speedup]:
    """One entry for every rate and number of ranks that has baselines. ValueError when none has."""
    entries = []
    places = dict.fromkeys((c["ranks"], c["rate"]) for c in cells if c["model"] == model)
    for ranks, rate in places:
        here = {c["method"]: c for c in cells if (c["model"], c["ranks"], c["rate"]) == (model, ranks, rate)}
        rivals = {name: c for name, c in here.items() if name not in (NONE, IDENTITY, BF16)}
        if not rivals or not {NONE, IDENTITY, BF16} <= here.keys():
            continue
        base = min((NONE, IDENTITY), key=lambda name: _step(here[name]))
        best = min(rivals, key=lambda name: _step(rivals[name]))
        cell = rivals[best]
        bits = parse_rate(rate)
        compute_ms = math.fsum(cell["own_ms"].values())
        wire_ms = 8e3 * sum(cell["sent_bytes"].values()) / bits if bits else 0.0
        identity_ms = math.fsum(here[IDENTITY]["own_ms"].values())
        entries.append(
            Speedup(
                model,
                ranks,
                rate,
                best,
                base,
                over_baseline=_step(here[base]) / _step(cell),
                over_bf16=_step(here[BF16]) / _step(cell),
                of_allowed=(compute_ms + wire_ms) / _step(cell),
                communication=max(0.0, 1 - identity_ms / _step(here[base])),
            )
        )
    if not entries:
        raise ValueError(f"no rate has none, identity, bf16 and a compressed method on model {model!r}")
    return entries


def _step(cell: Cell) -> float:
    return float(cell["step_ms_p50"])


def table(entries: Sequence[Speedup]) -> str:
    """The speedups as a Markdown table, a line for each number of ranks and rate."""
    heads = ["ranks", "rate", "best method", "over the faster baseline", "aim", "over bf16", "of what the bytes allow"]
    lines = ["| " + " | ".join([*heads, "communication, uncompressed"]) + " |", "|---" * 8 + "|"]
    for s in entries:
        aim = f"{AIMS[s.rate]:.0f}x" if s.rate in AIMS else "-"
        cells = [str(s.ranks), s.rate, s.method, f"{s.over_baseline:.2f}x ({s.baseline.split()[0]})", aim]
        cells += [f"{s.over_bf16:.2f}x", f"{s.of_allowed:.2f}", f"{100 * s.communication:.0f} %"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Read the cells, print the table."""
    parser = program("analysis.predict.speedup", __doc__)
    parser.add_argument("matrix", type=a_file)
    parser.add_argument("--model", default="blocks")
    parser.add_argument("--json", type=new_file())
    options = parser.parse_args(argv)
    with user_errors("speedup"):
        entries = speedups(read_json(options.matrix), options.model)
    print(f"{options.model}, both directions compressed; aim for the share of what the bytes allow: {AIM_ALLOWED}\n")
    print(table(entries))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(s) for s in entries], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    with unix_endings():
        sys.exit(main(sys.argv[1:]))
