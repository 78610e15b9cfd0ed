"""What is wrong with results rows, before anyone plots them.

    python -m analysis.fairness results/results.jsonl [--json FILE]

prints one finding a line, what it rests on and what to do about it; exit code 1 when there is an error among them. A
check is a function from one row to its findings; rows that did not end well are left to others.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from analysis.messages import unix_pipes

Row = Mapping[str, Any]
ITEMSIZE = {"fp32": 4, "bf16": 2, "fp16": 2}
# sign and mantissa, which no lossless code makes shorter
INCOMPRESSIBLE_BITS = {"fp32": 24, "bf16": 8, "fp16": 11}
MARGIN_BITS = 3.0
FEW_STEPS = 3


@dataclass(frozen=True)
class Finding:
    """``check`` names the function that found it, ``what`` gives the numbers, ``advice`` what to do."""

    severity: Literal["error", "warning"]
    check: str
    run_name: str
    what: str
    advice: str


Check = Callable[[Row], Iterator[Finding]]


def too_accurate(row: Row) -> Iterator[Finding]:
    """Gradients that arrive better than their bytes can carry: some of them came another way.

    b bits an element of a Gaussian source leave a squared error of at least 2^(-2b) of its variance (Shannon; Cover and
    Thomas, theorem 10.3.2), so a relative error of 2^-b. Real gradients allow less: few large elements, or layers of
    different sizes, are cheaper to code. Over all our methods on captured gradients the gain was at most 1.8 bits
    (results/reference/fidelity.jsonl: int4 after zstd), so `MARGIN_BITS` are granted. The mean of W ranks is better
    than each, as errors average out and a rank's own part costs nothing: by sqrt(W - 1) / W where all have the same
    gradient, which is the best case. A row is found out below

        grad_rel_error < 2^-(b + MARGIN_BITS) * sqrt(W - 1) / W

    It says nothing, and is not applied, where b reaches the bits that a lossless code of the dtype itself needs (24 for
    float32: sign and mantissa), because the bound is about real numbers, not floats. It does not hold for gradients
    that are exactly zero almost everywhere (embeddings of rare tokens, untied), nor for a joint code of ranks whose
    gradients are alike: there the finding is for a person to judge.
    """
    error, world, dtype = (row.get(name) for name in ("grad_rel_error", "world_size", "comm_dtype"))
    raw, sent = ((row.get(name) or {}).get("reduce_scatter") for name in ("bytes_raw_by_op", "bytes_compressed_by_op"))
    if error is None or sent is None or not raw or not isinstance(world, int) or world < 2 or dtype not in ITEMSIZE:
        return
    bits = 8 * sent / (raw / ITEMSIZE[dtype])
    least = 2 ** -(bits + MARGIN_BITS) * math.sqrt(world - 1) / world
    if bits < INCOMPRESSIBLE_BITS[dtype] and error < least:
        what = f"grad_rel_error {error:.2g} with {bits:.3g} bits an element, which carry {least:.2g} at best"
        advice = "look for bytes that the ledger does not see (files, shared memory, other groups); do not use the row"
        yield _finding("error", too_accurate, row, what, advice)


def untrusted_bytes(row: Row) -> Iterator[Finding]:
    """Rows whose network interface disagrees with the bytes they claim."""
    if row.get("bytes_trusted") is False:
        steps = max(row.get("interface_steps") or 0, 1)
        seen, said = (row.get("interface_bytes_total") or 0) / steps, _a_step(row, "bytes_compressed_total")
        what = f"its interface sent {seen:,.0f} bytes a step (headers included), the row says {said:,.0f}"
        yield _finding("error", untrusted_bytes, row, what, "find what the ledger misses; do not use its ratios")


def warm_up_counted(row: Row) -> Iterator[Finding]:
    """Step times with compilation, first allocations and cold caches in them."""
    excluded = row.get("warmup_steps_excluded")
    if row.get("step_time_ms_p50") is None:
        return
    if not excluded:
        what = "its step times leave no warm-up step out"
        yield _finding("error", warm_up_counted, row, what, "run more steps; do not compare its times")
    elif excluded < FEW_STEPS:
        what = f"its step times leave only {excluded} warm-up steps out of {row.get('steps')}"
        yield _finding("warning", warm_up_counted, row, what, "run 20 steps or more, which leaves five out")


CHECKS: tuple[Check, ...] = (too_accurate, untrusted_bytes, warm_up_counted)


def findings(rows: Sequence[Row]) -> list[Finding]:
    """All checks' findings over the rows that ended well; errors first."""
    found = [finding for row in rows if row.get("status") == "ok" for check in CHECKS for finding in check(row)]
    return sorted(found, key=lambda finding: finding.severity)


def load(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a JSONL file, and one complaint for every line that is none. ValueError when it cannot be read."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror}); name a results file (JSON lines)") from None
    rows, complaints = [], []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError:  # also bytes that are not UTF-8
            row = line
        if isinstance(row, dict):
            rows.append(row)
        elif row is not None:
            complaints.append(f"{path}, line {number} left out: not a JSON object")
    return rows, complaints


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="results.jsonl")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there, too")
    options = parser.parse_args(argv)
    try:
        rows, complaints = load(options.file)
        if not rows:
            raise ValueError(f"{options.file} holds no row")
        found = findings(rows)
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(finding) for finding in found], indent=1) + "\n")
    except (ValueError, OSError) as error:
        print(f"fairness: {error}", file=sys.stderr)
        return 2
    print("".join(f"{complaint}\n" for complaint in complaints), end="", file=sys.stderr)
    for finding in found:
        print(f"{finding.severity:8s}{finding.run_name}: {finding.what}\n{'':8s}{finding.advice} [{finding.check}]")
    left_out = f", {len(complaints)} lines left out" if complaints else ""
    print(f"{len(rows)} rows{left_out}, {len(found)} findings")
    return int(any(finding.severity == "error" for finding in found))


def _finding(severity: Literal["error", "warning"], check: Check, row: Row, what: str, advice: str) -> Finding:
    return Finding(severity, check.__name__, str(row.get("run_name")), what, advice)


def _a_step(row: Row, name: str) -> float:
    return float(row.get(name) or 0) / max(row.get("steps") or 0, 1)


if __name__ == "__main__":
    with unix_pipes():
        sys.exit(main(sys.argv[1:]))
