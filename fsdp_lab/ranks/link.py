"""The emulated network that a run goes over, as the environment describes it; read here and nowhere else."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

VARIABLE = "FSDP_LAB_LINK"


@dataclass(frozen=True)
class Link:
    """``rate_asked`` and ``rate_measured`` in bits/s (None: not limited, not measured), ``delay_ms`` one way.

    All ``ranks`` share one machine's cores; ``per_node`` of them share a network interface, ``eth0`` of their
    namespace, and reach each other over its loopback.
    """

    rate_asked: float | None
    rate_measured: float | None
    delay_ms: float
    ranks: int
    per_node: int = 1

    def variables(self) -> dict[str, str]:
        """The environment variables that tell the ranks of this link."""
        return {VARIABLE: json.dumps(asdict(self))}

    @property
    def interfaces(self) -> tuple[str, ...]:
        """The network interfaces by which a rank's bytes to other ranks leave."""
        return ("eth0",) if self.per_node == 1 else ("eth0", "lo")

    def row(self) -> dict[str, Any]:
        """The fields of a results row that are known before the run."""
        return {
            "link_rate_asked": self.rate_asked,
            "link_rate_measured": self.rate_measured,
            "link_delay_ms": self.delay_ms,
        }


def link_of_this_run() -> Link | None:
    """The link that the environment describes; None without one. ValueError for a description that makes no sense."""
    if VARIABLE not in os.environ:
        return None
    try:
        return Link(**json.loads(os.environ[VARIABLE]))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{VARIABLE}: {error}; unset it, or let experiments.links set it") from None
