"""What one replica remembers of its exchanges, fragment by fragment; real and virtual replicas keep it alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from comm_compress.core import nonfinite
from comm_compress.core.segments import unflatten
from comm_compress.core.state import State
from comm_compress.core.workspace import Workspace
from comm_compress.integrations.optim.gathers import OPTIMIZER
from comm_compress.integrations.optim.replicated.exchange import layout, rows_of
from comm_compress.integrations.replicas.fragments import Fragment


class States:
    """The states of replica ``rank`` of ``world``. ``divided``: see `Replicas.lay_out`."""

    def __init__(self, fragments: Sequence[Fragment], rank: int, world: int, seed: int, divided: bool) -> None:
        self._num_rows = world if divided else 1
        self._by_fragment = {
            fragment.name: State(
                fragment.name,
                rank,
                world,
                seed,
                layout(fragment.local(), self._num_rows),
                lasting=False,
                num_rows=self._num_rows,
            )
            for fragment in fragments
        }

    def begin(
        self, fragment: Fragment, tensors: Mapping[str, Tensor], workspace: Workspace | None = None
    ) -> tuple[Tensor, State]:
        """Return the rows ``[num_rows, n]`` (float32) of ``tensors``, and the state, which has begun an exchange.

        Where an element is not finite, every row gets a NaN.
        """
        state = self._by_fragment[fragment.name]
        state.segments, rows = layout(tensors, self._num_rows), rows_of(tensors, self._num_rows)
        state.begin(nonfinite.mark(rows), workspace=workspace)
        return rows, state

    def remembered(self, fragment: Fragment, name: str) -> dict[str, Tensor]:
        """Return what is remembered under ``name``, by parameter; nothing before the first time."""
        state = self._by_fragment[fragment.name]
        state.commit()
        rows = state.get(name)
        if rows is None:
            return {}
        parts = unflatten(rows, state.segments)
        return {segment.name: part for segment, part in zip(state.segments, parts, strict=True)}

    def void(self) -> None:
        """Take back what the exchanges of the step under way did."""
        for state in self._by_fragment.values():
            state.rollback()

    def named(self) -> dict[str, State]:
        """Return all states by the names that they are saved under."""
        return {f"{OPTIMIZER}/{name}": state for name, state in self._by_fragment.items()}


def require_first(states: object) -> None:
    """ValueError where an optimizer has laid out ``states`` before: each needs replicas of its own."""
    if states:
        raise ValueError("replicas: have an optimizer already; each needs replicas of its own")
