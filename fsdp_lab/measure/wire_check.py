"""Claimed bytes against the network interface's own counter, over training steps alone.

What leaves the interface besides the payload that we claim is known, packet by packet and message by message:

- Ethernet, IPv4 and TCP headers with time stamps, `HEADER` bytes a packet: the interface counts its packets;
- gloo's own, `GLOO_MESSAGE` bytes a message: the sender announces it, the receiver announces that it is ready, and a
  header goes before the data, 48 bytes each (exact in every collective measured, torch 2.13: docs/comparing/links.md);
- the trainer's own all-reduces of one number: the gradients' norm, the agreement on stopping, the logged loss;
- bytes that TCP sent twice, which the kernel counts for each connection. What was lost before it reached the interface
  left that once all the same, so these bytes excuse as much of a surplus, never a lack.

What is left may differ from the claim by `TOLERANCE`, or the run's bytes are not trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fsdp_lab.measure.connections import resent_bytes
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.ranks.link import Link

HEADER = 14 + 20 + 32
GLOO_MESSAGE = 3 * 48
ALL_REDUCE = 4  # bytes of one number
TOLERANCE = 0.01


class Interface(NamedTuple):
    """What interfaces have sent so far: bytes with headers, packets; payload bytes that this process sent again."""

    sent_bytes: int = 0
    packets: int = 0
    resent_bytes: int = 0

    def __add__(self, other: object) -> Interface:
        assert isinstance(other, Interface)
        return Interface(*(a + b for a, b in zip(self, other, strict=True)))

    def __sub__(self, other: Interface) -> Interface:
        return Interface(*(a - b for a, b in zip(self, other, strict=True)))


class Claim(NamedTuple):
    """What somebody says was sent: payload bytes, and the messages they went in."""

    payload: float = 0.0
    messages: float = 0.0

    def __add__(self, other: object) -> Claim:
        assert isinstance(other, Claim)
        return Claim(*(a + b for a, b in zip(self, other, strict=True)))

    def __sub__(self, other: Claim) -> Claim:
        return Claim(*(a - b for a, b in zip(self, other, strict=True)))

    def times(self, factor: float) -> Claim:
        """The claim of ``factor`` times as much traffic."""
        return Claim(*(factor * value for value in self))


def agree(interface: Interface, claim: Claim, own_all_reduces: Claim) -> bool:
    """Is the payload that left the interface the claimed one, to `TOLERANCE`?"""
    payload = interface.sent_bytes - HEADER * interface.packets
    surplus = payload - own_all_reduces.payload - GLOO_MESSAGE * (claim.messages + own_all_reduces.messages)
    slack = TOLERANCE * claim.payload
    return claim.payload - slack <= surplus <= claim.payload + slack + interface.resent_bytes


class WireCheck:
    """Counts between `open` and `close` (collective, like `paused`); without a link it does nothing.

    ``hooked``: this rank's claim so far, by the ledger. At the boundaries all ranks have received what was sent to
    them, so no byte is on its way: an all-reduce before the counters are read says so, another one that they were.
    """

    def __init__(self, link: Link | None, ranks: Ranks, hooked: Callable[[], Claim]) -> None:
        self._link, self._ranks, self._hooked = link, ranks, hooked
        self._is_open = False
        self._interface, self._claim = Interface(), Claim()
        self._steps = self._all_reduces = 0

    def open(self) -> None:
        """Count from now on; nothing changes where it counts already. Collective."""
        if self._link is not None and not self._is_open:
            self._is_open = True
            self._interface_before, self._claim_before = self._read(), self._hooked()
            self._all_reduces += 1  # the boundary's second

    def close(self) -> None:
        """Count no more until `open`. Collective."""
        if self._link is not None and self._is_open:
            self._is_open = False
            self._interface += self._read() - self._interface_before
            self._claim += self._hooked() - self._claim_before
            self._all_reduces += 1  # the boundary's first

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count no bytes of the interface inside; collective, since all ranks must pause at once."""
        was_open = self._is_open
        self.close()
        yield
        if was_open:
            self.open()

    def after_step(self, all_reduces: int) -> None:
        """Count a step, in which the trainer made ``all_reduces`` of one number for itself."""
        self._steps += self._is_open
        self._all_reduces += all_reduces * self._is_open

    def row(self, stock_a_step: Claim) -> dict[str, Any]:
        """The results row's fields; ``stock_a_step``: what goes by collectives without a hook; collective."""
        if self._link is None:
            return {}
        world, per_node = self._ranks.world, self._link.per_node
        claim = self._claim + stock_a_step.times(self._steps)
        by_rank = self._ranks.gather((self._interface, claim))
        nodes = [by_rank[first : first + per_node] for first in range(0, world, per_node)]
        share = 2 * (world - 1) / world  # gloo's ring, mean over the ranks
        own = Claim(ALL_REDUCE, 1).times(share * self._all_reduces * per_node)
        agreed = [_agree_on(node, own) for node in nodes]
        judged = world > 1 and self._ranks.backend == "gloo"
        return {
            "interface_bytes_total": round(sum(node[0][0].sent_bytes for node in nodes) / world),
            "interface_steps": self._steps,
            "bytes_trusted": all(agreed) if judged else None,
        }

    def _read(self) -> Interface:
        assert self._link is not None
        self._synchronise()
        counters = interface_counters(self._link.interfaces)
        self._synchronise()
        return counters

    def _synchronise(self) -> None:
        self._ranks.sum(torch.zeros(()))


def _agree_on(node: Sequence[tuple[Interface, Claim]], own_all_reduces: Claim) -> bool:
    """`agree` for the ranks of one node: they share its interfaces, and each sends and resends its own part."""
    resent = sum(interface.resent_bytes for interface, _ in node)
    claim = sum((claim for _, claim in node), Claim())
    return agree(node[0][0]._replace(resent_bytes=resent), claim, own_all_reduces)


def interface_counters(names: tuple[str, ...], proc: Path = Path("/proc/net")) -> Interface:
    """What the named interfaces of this network namespace have sent, and this process again.

    RuntimeError when there is none of that name.
    """
    lines = (line.partition(":") for line in (proc / "dev").read_text().splitlines())
    counters = [list(map(int, numbers.split())) for name, _, numbers in lines if name.strip() in names]
    if not counters:
        raise RuntimeError(f"no {' or '.join(names)} among this namespace's interfaces")
    return Interface(sum(c[8] for c in counters), sum(c[9] for c in counters), resent_bytes())
