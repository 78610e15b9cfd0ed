"""What local steps cost, in the unit of all other methods."""

from __future__ import annotations


def bits(sent_bytes: int, parameters: int, steps: int, ranks: int) -> float:
    """Return bits a parameter and optimizer step: what one rank sent, times W / (W - 1) so that world sizes compare.

    ``sent_bytes``: of all operations of one rank (`Totals.sent_bytes`). ``parameters``: how many were synchronised.
    ``steps``: optimizer steps in which that happened, local ones, not synchronisations. ``ranks``: W, in the group that
    they were sent to. 0 for one rank. Data-parallel training in float32 takes 64: 32 in each half of the all-reduce.
    Raises ValueError for counts below 1.
    """
    for name, value in (("parameters", parameters), ("steps", steps), ("ranks", ranks)):
        if value < 1:
            raise ValueError(f"{name} = {value}: must be 1 or more")
    return 8 * sent_bytes * ranks / (ranks - 1) / (parameters * steps) if ranks > 1 else 0.0
