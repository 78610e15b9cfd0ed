"""The handle of tensor and sequence parallelism: what is compressed on activations and on their gradients."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch.distributed as dist
from torch import nn

from comm_compress.core.compressor import Compressor
from comm_compress.core.ledger import Op
from comm_compress.core.state import State
from comm_compress.integrations.allreduce import check_ranks
from comm_compress.integrations.handle import BaseHandle
from comm_compress.integrations.optimizer_steps import OptimizerSteps
from comm_compress.integrations.parallel.places.direction import Direction
from comm_compress.integrations.parallel.places.methods import at_place, check, check_names
from comm_compress.integrations.parallel.places.place import Place, known_sizes
from comm_compress.integrations.parallel.places.recomputation import Recomputation
from comm_compress.integrations.parallel.places.sample_memory import SampleMemory
from comm_compress.registry import AnyMethod, chosen


class Activations(BaseHandle):
    """Compresses the activations that ranks exchange inside a model, and the gradients of these.

        activations = cc.parallel.Activations(forward="fp8", backward="int8", model=model)
        place = activations.place("layers.0.mlp", mesh["tp"].get_group())
        y = place.all_reduce(down(act(up(place.copy(x)))))        # a column-parallel and a row-parallel layer

    ``forward`` carries activations, ``backward`` their gradients; each is given as ``"int8"``, ``"fp8 format=e5m2"``,
    ``{"method": "int4", "hadamard": true}`` or what `make` built. None or "none": torch's own collectives, and the
    ledger names that direction as uncounted. A method's ``layers`` match names of places here. A message must be
    decoded from nothing but itself: methods that remember an earlier step (error feedback, delta), need to know
    parameters, or sum on the wire are refused.
    The ledger has the operations "activations" and "activation_gradients", units are places' names. States (random
    numbers) belong to a place and direction. ``model``: whose optimizer's steps `rollback` takes back (default: any
    optimizer's in this process), and whose modules give `comm_compress.parallel`'s styles the names of their places.
    ``seed``: of the methods' own random numbers.
    ``memory``: of the stages of a pipeline only: ``forward`` carries, instead of the activations, their change since
    the last visit of the same sample (AQ-SGD, Wang et al., 2022, arXiv 2206.01299), and both sides of a boundary
    remember what was sent. It counts among `state_bytes`, is part of `state_dict`, and `rollback`, called on all ranks,
    takes a void step's visits back. Where the method loses nothing (``identity``), nothing is remembered.
    ``count_stock``: torch's own collectives are entered in the ledger as well, with bytes computed from their shapes
    (`StockCounts`), and no direction is named as uncounted.
    Raises ValueError for a method that cannot carry activations, and for a memory without ``forward``.
    """

    def __init__(
        self,
        forward: AnyMethod | None = None,
        backward: AnyMethod | None = None,
        *,
        model: nn.Module | None = None,
        seed: int = 0,
        memory: SampleMemory | None = None,
        count_stock: bool = False,
    ) -> None:
        super().__init__()
        self.forward, self.backward = chosen("forward", forward), chosen("backward", backward)
        check("forward", self.forward)
        check("backward", self.backward)
        if memory is not None and self.forward is None:
            raise ValueError("memory: a method of forward is needed, which carries the changes of activations")
        stock: list[Op] = ["activations"] if self.forward is None else []
        stock += ["activation_gradients"] if self.backward is None else []
        self.ledger.uncounted = () if count_stock else tuple(stock)
        self._counts_stock = count_stock
        self.seed, self.memory = seed, memory
        self.model = model
        self.steps: OptimizerSteps = OptimizerSteps(model)
        self.places: dict[str, Place] = {}
        """All places by name."""
        self._recomputation = Recomputation()

    def place(self, name: str, group: dist.ProcessGroup, sizes: Sequence[int] | None = None) -> Place:
        """Return a new place in the model: every rank of ``group`` makes it, with the same name and sizes.

        ``sizes``: how many rows each rank has of the dimension that `Place.all_gather` and `Place.reduce_scatter` join
        and split; None: the same on all. ValueError for a name that is taken, for sizes that are not one for each rank,
        for a method that is not defined for so many ranks, and with a ``memory``, which is for stages of a pipeline.
        """
        if self.memory is not None:
            raise ValueError(
                f"place {name!r}: memory is for the stages of a pipeline (CompressedStage), which know the samples "
                "that they send: give all other places an Activations without memory"
            )
        return self._made(name, group, sizes)

    def between_stages(self, name: str, group: dist.ProcessGroup) -> Place:
        """Return a new place between two stages of a pipeline: as `place` does, also with a ``memory``."""
        return self._made(name, group, None)

    def _made(self, name: str, group: dist.ProcessGroup, sizes: Sequence[int] | None) -> Place:
        if not name or name in self.places:
            raise ValueError(f"place {name!r}: every place needs a name of its own; it keys states and the ledger")
        if dist.get_rank(group) < 0:
            raise ValueError(f"place {name!r}: this rank does not belong to its group")
        parts = None if sizes is None else known_sizes(f"place {name!r}", sizes, group.size())
        forward = self._direction("activations", name, group, self.forward)
        backward = self._direction("activation_gradients", name, group, self.backward)
        made = self.places[name] = Place(name, group, parts, forward, backward, self._recomputation)
        return made

    def check_names(self, names: Collection[str] | None = None) -> None:
        """ValueError for a pattern of a method's ``layers`` that matches no place. To be called once places are known.

        ``names``: of all places, those of other ranks (pipeline stages) among them; default: this rank's.
        """
        known = list(self.places) if names is None else names
        check_names("forward", self.forward, known)
        check_names("backward", self.backward, known)

    def recomputation(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return the contexts of a checkpointed forward and of its recomputation, in which nothing is sent again.

            torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False, context_fn=activations.recomputation)

        What collectives gave in the first forward is kept until backward (its memory is what is not saved), and given
        again. RuntimeError when the forward is recomputed differently, and when a result was changed in place.
        """
        return self._recomputation.contexts()

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Inside, torch's own collectives run and nothing is entered in the ledger: for exact evaluation."""
        self._set_exact(True)
        try:
            yield
        finally:
            self._set_exact(False)

    def _set_exact(self, exact: bool) -> None:
        for place in self.places.values():
            place.forward.exact = place.backward.exact = exact

    def _direction(self, op: Op, name: str, group: dist.ProcessGroup, method: Compressor | None) -> Direction:
        method = at_place(method, name)
        if method is not None:
            check_ranks(method, group.size())
        memory = self.memory if op == "activations" else None
        pool, counted = self.workspaces, self._counts_stock
        return Direction(op, name, group, method, self.seed, self.ledger, pool, self.steps, memory, counted)

    def _states(self) -> dict[str, State]:
        directions = (way for place in self.places.values() for way in (place.forward, place.backward))
        return {f"{way.op}/{way.place}": way.state for way in directions if way.method is not None}
