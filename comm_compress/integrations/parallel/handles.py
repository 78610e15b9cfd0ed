"""All that the ranks of an arrangement exchange, as one handle: one ledger, one set of states."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NoReturn

from comm_compress.core.ledger import Ledger, Op, Totals
from comm_compress.integrations.handle import BaseHandle

ORDER: tuple[Op, ...] = ("reduce_scatter", "all_gather", "all_reduce", "activations", "activation_gradients", "outer")


class JoinedLedger(Ledger):
    """The sum of several ledgers, by name."""

    def __init__(self, ledgers: Mapping[str, Ledger]) -> None:
        super().__init__()
        self._ledgers = dict(ledgers)

    def totals(self, op: Op | None = None, unit: str | None = None) -> Totals:
        """Sums over all of them, as `Ledger.totals`."""
        return sum((ledger.totals(op, unit) for ledger in self._ledgers.values()), Totals())

    def state_dict(self) -> dict[str, Any]:
        """Each one's state by its name."""
        return {name: ledger.state_dict() for name, ledger in self._ledgers.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Count on from what `state_dict` gave. ValueError for the state of other ledgers."""
        if state.keys() != self._ledgers.keys():
            raise ValueError(f"counts are of {', '.join(sorted(state))}, here are {', '.join(sorted(self._ledgers))}")
        for name, ledger in self._ledgers.items():
            ledger.load_state_dict(state[name])


class Handles:
    """Several handles as one: FSDP2's, DDP's, those of activations, of replicated gradients and of local steps.

    ``handles``: by name. ``computed``: what stock collectives of FSDP2 and DDP send, which no handle sees. ``ops``: the
    operations that there are. ``are_timed``: is the time of all of them known? ``is_stock``: are some of the
    collectives torch's own?
    """

    def __init__(
        self, handles: Mapping[str, BaseHandle], computed: Ledger, ops: Collection[Op], are_timed: bool, is_stock: bool
    ) -> None:
        self._handles, self.are_timed, self.is_stock = dict(handles), are_timed, is_stock
        self.ops = tuple(op for op in ORDER if op in ops)
        named = {name: handle.ledger for name, handle in self._handles.items()}
        self.ledger: Ledger = JoinedLedger({**named, "computed": computed})

    @property
    def ledgers(self) -> list[Ledger]:
        """The ledgers of the ranks that this process is: one."""
        return [self.ledger]

    @property
    def loss_scale(self) -> float:
        """What every gradient is multiplied by, as `BaseHandle.loss_scale`."""
        return next(iter(self._handles.values())).loss_scale

    @loss_scale.setter
    def loss_scale(self, scale: float) -> None:
        for handle in self._handles.values():
            handle.loss_scale = scale

    @property
    def state_bytes(self) -> int:
        """The bytes that all states hold on this rank."""
        return sum(handle.state_bytes for handle in self._handles.values())

    def compare(self) -> NoReturn:
        """ValueError: only FSDP2's own reduce-scatter can be compared with the exact gradient."""
        raise ValueError("compare: gradients of ranks that are arranged in several dimensions cannot be compared")

    def rollback(self) -> None:
        """Take back what a void step did to every state."""
        for handle in self._handles.values():
            handle.rollback()

    def exact(self) -> AbstractContextManager[None]:
        """Inside, nothing is compressed or counted: for evaluation."""
        return self._all_exact()

    @contextmanager
    def _all_exact(self) -> Iterator[None]:
        with ExitStack() as stack:
            for handle in self._handles.values():
                if hasattr(handle, "exact"):  # FSDP2's, and that of activations
                    stack.enter_context(handle.exact())
            yield

    def state_dicts(self) -> list[dict[str, Any]]:
        """The states of this rank, by "handle:operation/unit"."""
        return [
            {
                f"{name}:{key}": state
                for name, handle in self._handles.items()
                for key, state in handle.state_dicts()[0].items()
            }
        ]

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Put back what `state_dicts` gave. ValueError for the states of other handles, ranks or methods."""
        (mine,) = states
        by_handle: dict[str, dict[str, Any]] = {name: {} for name in self._handles}
        for key, state in mine.items():
            name, _, own = key.partition(":")
            if name not in by_handle:
                raise ValueError(f"compressor state of {key}, which is not exchanged here")
            by_handle[name][own] = state
        for name, handle in self._handles.items():
            handle.load_state_dicts([by_handle[name]])
