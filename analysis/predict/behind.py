"""A step that was measured here, behind a link that it did not run behind: what it took, and what the link adds.

    step behind the link = step without a limit + sum of (seconds behind the link - seconds without) / every - hidden

over the operations of the ledger: reduce-scatters and all-gathers of FSDP2, all-reduces between replicas, what an
`optimizer` exchanges in place of gradients or gathers for its products, and `outer`, the synchronisation after local
steps, which comes once in ``every`` optimizer steps. Unlike `step_model` this needs no calibrated codec of an arm, so
it serves whatever has a results row; of a calibration it takes the link alone.

What is assumed:

- parameters that are gathered ahead hide behind computation, for half of the measured step at most (`HIDDEN`); nothing
  else hides. Both were chosen after seeing the sixteen measured cells that the test compares with (two ranks on two
  cores, 1 Gbit/s and 200 Mbit/s); no cell has local steps, or another optimizer than AdamW;
- every operation goes as our exchanges do: a row's bytes, over the share of the link that these use. (torch's own
  reduce-scatter on gloo sends everything twice, and rows count it so: compare with `identity`, too);
- an operation's messages of one step fill the link as one message of their size does; a link has no delay beyond that
  of the calibration's calls;
- what a step took here beside communication, it takes there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.predict.step_model import Link

_KIND = "exchange"  # of our transport
HIDDEN = 0.5
"""The share of a measured step behind which gathers ahead can hide: what forward and backward of the blocks take."""


@dataclass(frozen=True)
class Operation:
    """What one rank sends in one operation: ``sent`` bytes at a time, once in ``every`` optimizer steps.

    ``is_ahead``: is it begun before it is needed, so that it can hide?"""

    name: str
    sent: float
    every: float = 1.0
    is_ahead: bool = False


def operations(row: Mapping[str, Any]) -> list[Operation] | None:
    """The operations of a row's mean step; None where the row does not know its bytes."""
    steps, by_op = row.get("steps"), row.get("bytes_compressed_by_op")
    if not steps or not isinstance(by_op, Mapping) or not all(isinstance(sent, int | float) for sent in by_op.values()):
        return None
    config = row.get("config") or {}
    found = []
    for name, sent in by_op.items():
        every = _every(config) if name == "outer" else 1.0
        is_ahead = name == "all_gather" and config.get("fsdp_prefetch", 1) > 0
        found += [Operation(name, sent / steps * every, every, is_ahead)] if sent else []
    return found


def _every(config: Mapping[str, Any]) -> float:
    """How many optimizer steps lie between two synchronisations: of parts in turn, between those of two parts."""
    return max(float(config.get("outer_every") or 1) / float(config.get("outer_fragments") or 1), 1.0)


def step_seconds_behind(measured_s: float, exchanged: Sequence[Operation], link: Link, free: Link) -> float:
    """The mean seconds of a step behind ``link``, from its mean seconds where nothing limited it (``free``)."""
    added = [(one, _added(one, link, free) / one.every) for one in exchanged]
    ahead = math.fsum(seconds for one, seconds in added if one.is_ahead)
    return measured_s + math.fsum(seconds for _, seconds in added) - min(ahead, HIDDEN * measured_s)


def _added(operation: Operation, link: Link, free: Link) -> float:
    return max(link.seconds(_KIND, operation.sent) - free.seconds(_KIND, operation.sent), 0.0)
