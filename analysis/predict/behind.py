"""A step that was measured here, behind a link that it did not run behind: what it took, and what the link adds.

    step behind the link = step without a limit + waited for behind the link - waited for without a limit

where what is waited for is, of the operations of a step, the seconds of those that hide behind nothing, and of those
that can hide what is longer than the computation that they hide behind. Operations are those of the ledger:
reduce-scatters and all-gathers of FSDP2, all-reduces between replicas, what an `optimizer` exchanges in place of
gradients or gathers for its products, and `outer`, the synchronisation after local steps, which comes once in ``every``
optimizer steps. Unlike `step_model` this needs no calibrated codec of an arm, so it serves whatever has a results row;
of a calibration it takes the link alone.

What can hide, on a CPU with gloo:

- the root unit (embeddings and head) nothing: it is gathered before anything can be computed, and reduced last. The row
  says how large it is, because blocks are gathered twice a step and the root once (`_blocks`);
- blocks that are gathered ahead (``fsdp_prefetch``) behind what blocks compute, forward and backward apart;
- reduce-scatters of blocks behind what blocks compute in backward, if they overlap (``fsdp_overlap_reduce``) and are
  ours: stock FSDP2 waits for its own.

What is assumed besides:

- what blocks compute is their share of the parameters, of the whole measured step; a third of it is forward;
- with a method an operation goes as our exchanges do, without one as torch's own collective, of which the calibration
  knows how much of the link it uses;
- an operation's messages of one step fill the link as one message of their size does; a link has no delay beyond that
  of the calibration's calls;
- what a step took here beside communication, it takes there.

That the root hides nothing, and blocks as much as they compute, was chosen after seeing the cells that the tests
compare with (user_model.jsonl and links.jsonl in results/reference/links: two ranks on two cores, 1 Gbit/s and
200 Mbit/s). No cell has local steps, or another optimizer than AdamW.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from analysis.predict.step_model import ITEM, Link

Window = Literal["forward", "backward"]
BLOCKS = 0.5
"""The blocks' share of a model's parameters where the row does not tell it."""
FORWARD = 1 / 3
"""The share of forward in what a block computes: two products with its weights in backward, one in forward."""
_KINDS = {"reduce_scatter": "reduce_scatter", "all_gather": "all_gather"}  # of torch's own collectives
_METHODS = {"reduce_scatter": "comm_compress", "all_gather": "param_compress"}  # settings that name what is in between


@dataclass(frozen=True)
class Operation:
    """What one rank sends in one operation: ``sent`` bytes at a time, once in ``every`` optimizer steps.

    ``behind``: what it hides behind, if anything. ``kind``: of the link's costs; ``sent`` is payload, which torch's own
    reduce-scatter on gloo sends twice."""

    name: str
    sent: float
    every: float = 1.0
    behind: Window | None = None
    kind: str = "exchange"


@dataclass(frozen=True)
class Traffic:
    """The operations of a row's step. ``windows``: the share of the measured step that each window is."""

    operations: Sequence[Operation]
    windows: Mapping[Window, float]


def traffic(row: Mapping[str, Any], steady: bool = False) -> Traffic | None:
    """What the row's mean step sends; None where the row does not know its bytes.

    ``steady``: a step as those that were timed are, without the first gather of `delta`, which is whole."""
    steps, by_op = row.get("steps"), row.get("bytes_compressed_by_op")
    if not steps or not isinstance(by_op, Mapping) or not all(isinstance(sent, int | float) for sent in by_op.values()):
        return None
    config = row.get("config") or {}
    blocks = _blocks(row, config)
    operations: list[Operation] = []
    for name, sent in by_op.items():
        if name == "outer":
            every = _every(config)
            operations += [Operation(name, sent / steps * every, every)]
        elif name == "all_gather":
            operations += _gathers(_a_step(row, config, name, steady), _kind(row, config, name), config, blocks)
        elif name == "reduce_scatter":
            operations += _reductions(_a_step(row, config, name, steady), _kind(row, config, name), config, blocks)
        else:
            operations += [Operation(name, sent / steps)]
    windows: dict[Window, float] = {"forward": FORWARD * blocks, "backward": (1 - FORWARD) * blocks}
    return Traffic([one for one in operations if one.sent], windows)


def _gathers(sent: float, kind: str, config: Mapping[str, Any], blocks: float) -> Iterator[Operation]:
    """The root's gather, then the blocks': forward and, where they were given up in between, again in backward."""
    windows: list[Window] = ["forward", "backward"] if config.get("fsdp_reshard") is not False else ["forward"]
    is_ahead = config.get("fsdp_prefetch", 1) > 0
    whole = sent / (1 - blocks + len(windows) * blocks)  # all parameters once
    yield Operation("all_gather", (1 - blocks) * whole, kind=kind)
    for window in windows:
        yield Operation("all_gather", blocks * whole, behind=window if is_ahead else None, kind=kind)


def _reductions(sent: float, kind: str, config: Mapping[str, Any], blocks: float) -> Iterator[Operation]:
    overlaps = kind == "exchange" and (config.get("fsdp_overlap_reduce") or 0) > 0
    yield Operation("reduce_scatter", (1 - blocks) * sent, kind=kind)
    yield Operation("reduce_scatter", blocks * sent, behind="backward" if overlaps else None, kind=kind)


def _blocks(row: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    """The blocks' share of the parameters.

    With the root's n and the blocks' m parameters, n + m are reduced and n + 2 m gathered. `BLOCKS` where blocks stay
    gathered, or where other parameters are gathered than reduced (frozen ones, for example)."""
    elements = row.get("elements_by_op") or {}
    reduced, gathered = (elements.get(name) for name in ("reduce_scatter", "all_gather"))
    if not reduced or not gathered or config.get("fsdp_reshard") is False or not reduced < gathered <= 2 * reduced:
        return BLOCKS
    return float(gathered / reduced - 1)


def _kind(row: Mapping[str, Any], config: Mapping[str, Any], name: str) -> str:
    return _KINDS[name] if config.get(_METHODS[name]) == "none" else "exchange"


def _a_step(row: Mapping[str, Any], config: Mapping[str, Any], name: str, steady: bool) -> float:
    """The payload of one step's operation, in bytes."""
    steps, sent = float(row["steps"]), float(row["bytes_compressed_by_op"][name])
    if _kind(row, config, name) != "exchange":
        return float((row.get("bytes_raw_by_op") or {}).get(name, sent)) / steps
    reduced = (row.get("elements_by_op") or {}).get("reduce_scatter")
    if steady and name == "all_gather" and config.get(_METHODS[name]) == "delta" and reduced and steps > 1:
        whole: float = ITEM * reduced / steps  # all parameters once, as many as are reduced in a step
        return max(sent - whole, 0.0) / (steps - 1)
    return sent / steps


def _every(config: Mapping[str, Any]) -> float:
    """How many optimizer steps lie between two synchronisations: of parts in turn, between those of two parts."""
    return max(float(config.get("outer_every") or 1) / float(config.get("outer_fragments") or 1), 1.0)


def step_seconds_behind(measured_s: float, exchanged: Traffic, link: Link, free: Link) -> float:
    """The mean seconds of a step behind ``link``, from its mean seconds where nothing limited it (``free``)."""
    added = _waited_for(measured_s, exchanged, link) - _waited_for(measured_s, exchanged, free)
    return measured_s + max(added, 0.0)


def _waited_for(measured_s: float, exchanged: Traffic, link: Link) -> float:
    """Seconds of a step in which its operations keep it waiting."""
    seconds: dict[Window | None, list[float]] = {}
    for one in exchanged.operations:
        seconds.setdefault(one.behind, []).append(link.seconds(one.kind, one.sent) / one.every)
    waited = 0.0
    for behind, those in seconds.items():
        hidden = 0.0 if behind is None else measured_s * exchanged.windows[behind]
        waited += max(math.fsum(those) - hidden, 0.0)
    return waited
