"""What is wrong with one row, whatever it is compared with. A check takes a row that ended well."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from analysis.checks.finding import Concerns, Finding, Severity

Row = Mapping[str, Any]
Check = Callable[[Row], Iterator[Finding]]
ITEMSIZE = {"fp32": 4, "bf16": 2, "fp16": 2}
# sign and mantissa, which no lossless code makes shorter
INCOMPRESSIBLE_BITS = {"fp32": 24, "bf16": 8, "fp16": 11}
MARGIN_BITS = 3.0
FEW_STEPS = 3


def too_accurate(row: Row) -> Iterator[Finding]:
    """Gradients that arrive better than their bytes can carry: some of them came another way.

    b bits an element of a Gaussian source leave a squared error of at least 2^(-2b) of its variance (Shannon; Cover and
    Thomas, theorem 10.3.2), so a relative error of 2^-b. Real gradients allow less: few large elements, or layers of
    different sizes, are cheaper to code. Over all our methods on captured gradients the gain was at most 1.8 bits
    (results/reference/errors/fidelity.jsonl: int4 after zstd), so `MARGIN_BITS` are granted. The mean of W ranks is
    better than each, as errors average out and a rank's own part costs nothing: by sqrt(W - 1) / W where all have the
    same gradient, which is the best case. A row is found out below

        grad_rel_error < 2^-(b + MARGIN_BITS) * sqrt(W - 1) / W

    It says nothing, and is not applied, where b reaches the bits that a lossless code of the dtype itself needs (24 for
    float32: sign and mantissa), because the bound is about real numbers, not floats. Gradients of 16-bit arithmetic are
    16-bit numbers, whatever dtype they are reduced in, unless they are sums of micro-batches. It does not hold for
    gradients that are exactly zero almost everywhere (embeddings of rare tokens, untied), nor for a joint code of
    ranks whose gradients are alike: there the finding is for a person to judge.
    """
    error, world, dtype = (row.get(name) for name in ("grad_rel_error", "world_size", "comm_dtype"))
    raw, sent = ((row.get(name) or {}).get("reduce_scatter") for name in ("bytes_raw_by_op", "bytes_compressed_by_op"))
    if error is None or sent is None or not raw or not isinstance(world, int) or world < 2 or dtype not in ITEMSIZE:
        return
    bits = 8 * sent / (raw / ITEMSIZE[dtype])
    least = 2 ** -(bits + MARGIN_BITS) * math.sqrt(world - 1) / world
    if bits < _lossless_bits(row) and error < least:
        what = f"grad_rel_error {error:.2g} with {bits:.3g} bits an element, which carry {least:.2g} at best"
        advice = "look for bytes that the ledger does not see (files, shared memory, other groups); do not use the row"
        yield _finding("error", too_accurate, row, what, advice, "all")


def _lossless_bits(row: Row) -> int:
    dtypes = [row["comm_dtype"]]
    if row.get("gradient_accumulation_steps") == 1 and row.get("param_dtype") in INCOMPRESSIBLE_BITS:
        dtypes.append(row["param_dtype"])
    return min(INCOMPRESSIBLE_BITS[dtype] for dtype in dtypes)


def untrusted_bytes(row: Row) -> Iterator[Finding]:
    """Rows whose network interface counted other bytes than they claim."""
    if row.get("bytes_trusted") is False:
        steps = max(row.get("interface_steps") or 0, 1)
        seen, said = (row.get("interface_bytes_total") or 0) / steps, _a_step(row, "bytes_compressed_total")
        what = f"its interface sent {seen:,.0f} bytes a step (headers included), the row says {said:,.0f}"
        yield _finding(
            "error", untrusted_bytes, row, what, "find what the ledger misses; do not use its ratios", "bytes"
        )


def warm_up_counted(row: Row) -> Iterator[Finding]:
    """Rows whose step times have compilation, first allocations and cold caches in them."""
    excluded = row.get("warmup_steps_excluded")
    if row.get("step_time_ms_p50") is None:
        return
    if not excluded:
        what = "its step times leave no warm-up step out"
        yield _finding("error", warm_up_counted, row, what, "run more steps; do not compare its times", "times")
    elif excluded < FEW_STEPS:
        what = f"its step times leave only {excluded} warm-up steps out of {row.get('steps')}"
        yield _finding("warning", warm_up_counted, row, what, "run 20 steps or more, which leaves five out", "times")


CHECKS: tuple[Check, ...] = (too_accurate, untrusted_bytes, warm_up_counted)


def _finding(severity: Severity, check: Check, row: Row, what: str, advice: str, concerns: Concerns) -> Finding:
    return Finding(severity, check.__name__, str(row.get("run_name")), what, advice, concerns)


def _a_step(row: Row, name: str) -> float:
    return float(row.get(name) or 0) / max(row.get("steps") or 0, 1)
