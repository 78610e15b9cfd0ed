"""Some steps' gradients are compared with the exact ones, which sends more and takes longer than training does."""

from __future__ import annotations

from collections.abc import Callable

from fsdp_lab.measure.samples import Sample, Samples
from fsdp_lab.ranks.distributed import Ranks
from fsdp_lab.training.communication import Communication


class Sampling:
    """Compares every ``every``-th step (0: none), but not those that are ``profiled``, where it would be seen."""

    def __init__(self, comm: Communication, ranks: Ranks, every: int, profiled: Callable[[int], bool]) -> None:
        self._comm, self._ranks, self._every, self._profiled = comm, ranks, every, profiled
        self.samples = Samples()

    def is_due(self, step: int) -> bool:
        """Is the gradient of this step compared?"""
        is_its_turn = self._every > 0 and step % self._every == 0
        return is_its_turn and self._comm.can_compare and not self._profiled(step)

    def take(self) -> Sample | None:
        """What the comparison in the last step gave, the same on all ranks; None where there was none. Collective."""
        comparison = self._comm.end_comparison()
        if comparison is None:
            return None
        sample = Sample.of(self._ranks.gather(comparison))
        self.samples.add(sample)
        return sample
