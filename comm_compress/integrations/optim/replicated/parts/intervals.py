"""Steps that come at growing intervals: 0/1 Adam's policies (arXiv 2202.06009, section 6)."""

from __future__ import annotations


def is_variance_step(step: int, scaler: int) -> bool:
    """Is the variance updated in ``step`` (from 1)? The first ``scaler`` updates come at every step, as many more at
    every second one, and so on: the interval doubles after every ``scaler`` updates."""
    start, interval = 0, 1
    while step > start + scaler * interval:
        start, interval = start + scaler * interval, 2 * interval
    return (step - start) % interval == 0


def variance_steps(steps: int, scaler: int) -> int:
    """How many of the first ``steps`` steps update the variance."""
    updates, start, interval = 0, 0, 1
    while steps > start + scaler * interval:
        updates, start, interval = updates + scaler, start + scaler * interval, 2 * interval
    return updates + (steps - start) // interval


def is_synchronised(step: int, after: int, scaler: int, longest: int) -> bool:
    """Do replicas synchronise in ``step``, of which those up to ``after`` all do?

    Then the interval doubles every ``scaler`` steps, up to ``longest``. Steps that it divides are synchronised.
    """
    if step <= after:
        return True
    doublings = min((step - after - 1) // scaler, longest.bit_length())  # more would be beyond it
    return step % min(1 << doublings, longest) == 0
