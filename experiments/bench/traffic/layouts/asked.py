"""Which arms the flags of `fsdp-lab bench layouts` ask for, by their names; `arms` makes them, on every rank."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace
from typing import Any

from fsdp_lab.parallel.planning.plan import DATA_PARALLEL
from fsdp_lab.parallel.planning.steps.pipelines import PIPELINES

Lines = list[dict[str, Any]]
"""What is measured of each arm."""


@dataclass(frozen=True)
class Asked:
    """An arm by its names. ``shares``: of each rank in a layout (empty: equal), blocks of each stage in a pipeline.

    ``micro_batches``: of a pipeline.
    """

    layout: str
    method: str
    gradients: str
    shares: tuple[float, ...] = ()
    micro_batches: int = 1

    def plain(self) -> dict[str, Any]:
        """This arm's layout, methods and shares as plain values, for a JSON file."""
        return asdict(self)


def asked_for(options: argparse.Namespace) -> list[Asked]:
    """The arms that the flags name: every layout with every method that changes something for it."""
    arms: list[Asked] = []
    for layout in options.layouts:
        if layout in DATA_PARALLEL:
            arms += [Asked(layout, "none", method) for method in dict.fromkeys(("none", options.gradients))]
            continue
        for method in options.methods:
            gradients = "none" if method == "none" else options.gradients
            one = Asked(layout, method, gradients, micro_batches=options.micro_batches)
            if layout in PIPELINES:
                arms.append(replace(one, gradients="none", shares=tuple(options.blocks or ())))
            else:
                equal = (1.0,) * options.ranks
                arms += [
                    replace(one, shares=shares) for shares in dict.fromkeys((equal, tuple(options.shares or equal)))
                ]
    return arms
