"""Local steps of many replicas in one process: the numbers and bytes of real ones, without a network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from comm_compress.core.compressor import Compressor
from comm_compress.core.ledger import Collective, Ledger
from comm_compress.core.segments import flatten, segments_of, unflatten
from comm_compress.core.state import State
from comm_compress.drive import simulate
from comm_compress.drive.stock_counts import StockCounts
from comm_compress.integrations.handle import load, save
from comm_compress.integrations.outer.bits import bits
from comm_compress.integrations.outer.methods import How, Methods, gradient_methods
from comm_compress.integrations.outer.optimizers import OptimizerFactory, averaging
from comm_compress.integrations.outer.schedule import Schedule
from comm_compress.integrations.outer.synchroniser import GRADIENTS, OUTER, Arrived, Exchange, Means, Synchroniser
from comm_compress.integrations.replicas.fragments import Fragment, divide, set_apart, trainable
from comm_compress.methods.identity import UNCOMPRESSED
from comm_compress.registry import AnyMethod


class VirtualReplicas(Synchroniser):
    """``world`` replicas of a plain module that train in turn and synchronise as with `attach`.

        replicas = cc.outer.VirtualReplicas(model, 8, lambda p: torch.optim.AdamW(p, lr=1e-3), "int8", every=30)
        for step in range(steps):
            for rank in range(8):
                with replicas.worker(rank) as (module, optimizer):
                    loss_of(module, batches[step][rank]).backward()
                    optimizer.step(); optimizer.zero_grad()
            replicas.step()

    With ``by_gradient`` all replicas' backwards come first, then `reduce_gradients`, then all optimizers' steps.
    ``optimizer`` makes each replica's inner one; None: the caller updates each replica's parameters (`replica`) by
    optimizers of its own. The other arguments are those of `attach`, and so are methods' random
    numbers, states, ledgers and results, bit for bit; above two replicas methods that have the network add up floats
    (powersgd) agree to its order of sums, and so does torch's own all-reduce. Each replica has torch's global random
    numbers to itself (dropout), from where they stood: as ranks that were seeded alike.
    Memory: W copies of parameters, gradients and inner optimizers; one copy of the outer parameters. Times in ledgers
    are zero, and nothing is really overlapped: what is applied later was exchanged when it was sent.
    Raises ValueError as `attach` does.
    """

    def __init__(
        self,
        model: nn.Module,
        world: int,
        optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None,
        method: AnyMethod | None = None,
        *,
        every: int,
        outer_optimizer: OptimizerFactory | None = None,
        all_gather: AnyMethod | None = None,
        exchange: How = "reduce_scatter",
        fragments: int | Sequence[Sequence[str]] = 1,
        overlap: int = 0,
        mixing: float = 0.0,
        by_gradient: Sequence[str] = (),
        gradient_every: int | None = None,
        gradient_method: AnyMethod | None = None,
        seed: int = 0,
        count_stock: bool = False,
    ) -> None:
        if world < 1:
            raise ValueError(f"world = {world}: must be 1 or more")
        parameters = trainable(model)
        moving, others = set_apart(parameters, by_gradient)
        num_fragments = len(divide(moving, fragments))
        schedule = Schedule(every, num_fragments, overlap, mixing, gradient_every)
        elements = sum(p.numel() for p in parameters.values())
        methods = Methods(method, all_gather, exchange, world, elements)
        of_gradients = gradient_methods(methods, gradient_method, moving, others, world)
        self._method = methods.reduce
        self.world = world
        self.models = [copy.deepcopy(model) for _ in range(world)]
        """Each replica's module; the one that was given is left alone. Nothing in a copy may refer to it (as what
        `torch.compile` makes of a method does)."""
        inner = [] if optimizer is None else [optimizer(list(trainable(m).values())) for m in self.models]
        self.optimizers = inner
        """Each replica's inner optimizer; empty where the caller has them."""
        apart = [set_apart(trainable(m), by_gradient) for m in self.models]
        super().__init__(
            [divide(moving, fragments) for moving, _ in apart],
            schedule,
            outer_optimizer or averaging(),
            [Fragment(GRADIENTS, others) for _, others in apart if others],
        )
        self._by_part = [*(methods for _ in range(num_fragments)), *(of_gradients for _ in self._gradients[:1])]
        is_uncounted = not count_stock and any(how.reduce is None for how in self._by_part)
        self.ledgers = [Ledger((OUTER,) if is_uncounted else ()) for _ in range(world)]
        """Each replica's ledger."""
        self._counts_stock = count_stock
        self._random = [_RandomState() for _ in range(world)]
        self._states = [
            [
                State(part.name, rank, world, seed, _segments(part.local(), world), lasting=False)
                for rank in range(world)
            ]
            for part in self._parts
        ]

    @property
    def ledger(self) -> Ledger:
        """What replica 0 sent; every other one has a ledger in ``ledgers``."""
        return self.ledgers[0]

    @property
    def bits(self) -> float:
        """Bits a parameter and inner step so far of replica 0, as `comm_compress.outer.bits` counts them."""
        sent = self.ledger.totals(OUTER).sent_bytes
        return bits(sent, self.num_parameters, max(self.inner_steps, 1), self.world)

    @property
    def method(self) -> Compressor | None:
        """What carries pseudo-gradients; None: torch's own all-reduce."""
        return self._method

    @property
    def state_bytes(self) -> int:
        """The bytes that compressor states (the mean over replicas) hold, and `kept_bytes`."""
        states = sum(state.num_bytes for of_part in self._states for state in of_part)
        return round(states / self.world) + self.kept_bytes

    @contextmanager
    def replica(self, rank: int) -> Iterator[nn.Module]:
        """One replica's module; inside, torch's global random numbers are its own."""
        with self._random[rank].in_use():
            yield self.models[rank]

    @contextmanager
    def worker(self, rank: int) -> Iterator[tuple[nn.Module, torch.optim.Optimizer]]:
        """One replica's module and inner optimizer; inside, torch's global random numbers are its own."""
        with self.replica(rank) as module:
            yield module, self.optimizers[rank]

    def _begin(self, number: int, by_replica: list[Means]) -> Exchange:
        if self.world == 1:
            return Arrived(by_replica[0])
        names = [name for name, _ in by_replica[0]]
        shapes = [tensor.shape for _, tensor in by_replica[0]]
        if self._by_part[number].reduce is None:
            means = [(name, _mean([m[i][1] for m in by_replica])) for i, name in enumerate(names)]
            self._count_stock(number, means)
            return Arrived(means)
        inputs = []
        while by_replica:  # of a replica there is either this or the rows
            tensors = [tensor.view(-1) if tensor.dim() == 0 else tensor for _, tensor in by_replica.pop(0)]
            inputs.append(flatten(tensors, self.world))
        everything = self._exchanged(number, inputs)
        parts = unflatten(everything, self._states[number][0].segments)
        return Arrived([(n, part.reshape(s).clone()) for n, part, s in zip(names, parts, shapes, strict=True)])

    def _exchanged(self, number: int, inputs: list[Tensor]) -> Tensor:
        """Return the means ``[W, n]`` of ``inputs``, which every replica gets, and enter what each has sent."""
        how = self._by_part[number]
        reduce, gather = how.reduce, how.gather or UNCOMPRESSED
        assert reduce is not None
        states = self._states[number]
        for rows, state in zip(inputs, states, strict=True):
            state.begin(reduce.mark(rows))
        start = [how.rounds, *[how.rounds_unheard] * (self.world - 1)]
        rounds = [
            begin(rows, reduce, gather, state, self.world)
            for begin, rows, state in zip(start, inputs, states, strict=True)
        ]
        outcome = simulate.lockstep(rounds)
        for sent, state, ledger in zip(outcome.sent, states, self.ledgers, strict=True):
            collective = Collective(torch.device("cpu"), sent, outcome.rounds)
            elements = 2 * inputs[0][1:].numel()
            ledger.add(OUTER, self._parts[number].name, collective, elements, 4, state.finite)
        everything: Tensor = outcome.results[0]
        return everything

    def _count_stock(self, number: int, means: Means) -> None:
        """Enter in every replica's ledger what torch's own all-reduce would have sent, if that is to be counted."""
        if not self._counts_stock:
            return
        together = torch.cat([mean.reshape(-1) for _, mean in means])
        for rank, ledger in enumerate(self.ledgers):
            counts = StockCounts(ledger, OUTER, self._parts[number].name, rank, self.world)
            counts.all_reduce(together, lambda: together)

    def _void(self, number: int) -> None:
        for state in self._states[number]:
            state.rollback()

    def state_dicts(self) -> list[dict[str, Any]]:
        """Return what each replica's ``Handle.state_dict()`` would be: real ranks can go on with it."""
        saved = [self._saved(rank, self.world) for rank in range(self.world)]
        by_rank = [{key: save(state) for key, state in self._by_key(rank).items()} for rank in range(self.world)]
        return [{**states, OUTER: mine} for states, mine in zip(by_rank, saved, strict=True)]

    def load_state_dicts(self, states: Sequence[Mapping[str, Mapping[str, Any]]]) -> None:
        """Put back what `state_dicts`, or as many real replicas, gave. Raises ValueError when anything differs."""
        if len(states) != self.world:
            raise ValueError(f"outer states of {len(states)} replicas do not fit {self.world} virtual ones")
        for rank, saved in enumerate(states):
            if OUTER not in saved:
                raise ValueError("no outer state to load: not saved by a handle of comm_compress.outer")
            self._check(saved[OUTER], rank, self.world)
        for rank, saved in enumerate(states):
            load({key: state for key, state in saved.items() if key != OUTER}, self._by_key(rank))
        self._load([saved[OUTER] for saved in states])

    def _by_key(self, rank: int) -> dict[str, State]:
        named = zip(self._parts, self._states, self._by_part, strict=True)
        return {f"{OUTER}/{part.name}": states[rank] for part, states, how in named if how.reduce is not None}


class _RandomState:
    """Torch's global random numbers, of one replica among several."""

    def __init__(self) -> None:
        self._take()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, they are this replica's; outside, those of before."""
        others = _RandomState()
        self._give()
        try:
            yield
        finally:
            self._take()
            others._give()

    def _take(self) -> None:
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def _give(self) -> None:
        torch.set_rng_state(self._cpu)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    """Sum up rank after rank, and divide."""
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total.div_(len(tensors))


def _segments(tensors: Mapping[str, Tensor], world: int) -> Any:
    return segments_of([(name, tuple(t.shape) or (1,)) for name, t in tensors.items()], world)
