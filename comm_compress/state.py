"""What a compressor remembers between steps, and how a step is taken back."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from comm_compress.encoded import Encoded, Layout
from comm_compress.segments import Segment
from comm_compress.workspace import Workspace


class Key(NamedTuple):
    """64 bits that name one stream of random numbers; see `kernels.random_bits`."""

    low: int
    high: int


class _Later:
    """A bool scalar of any device, for the CPU to ask about later: it waits for what was queued before, no more."""

    def __init__(self, flag: Tensor) -> None:
        self._flag, self._there = flag, None
        if flag.is_cuda:
            self._flag = torch.empty((), dtype=torch.bool, pin_memory=True).copy_(flag, non_blocking=True)
            self._there = torch.cuda.current_stream(flag.device).record_event()

    def __bool__(self) -> bool:
        if self._there is not None:
            self._there.synchronize()
        return bool(self._flag)


class State:
    """Named tensors of one FSDP unit in one direction, with one uncommitted version of each.

    A step may turn out to be void after its gradients were encoded (a NaN in a unit that came later, on
    any rank). So a compressor proposes new tensors; they take effect when the unit is used next, unless
    `rollback` came first. The price is a second buffer for what is proposed.

    ``unit``, ``rank``, ``world``, ``seed``: whose state this is; random numbers are a function of these and
    of ``tick``, the number of the current collective (1 for the first), and of nothing else.
    ``segments``: which parameter lies where in a row; empty when unknown.
    ``finite``: bool scalar tensor set by `begin`: were all of this rank's inputs finite? A state must never
    absorb the others.
    ``output``: where the caller wants the result of the collective under way, or None; see `result`.
    ``master``: reads the float32 ``[n]`` that the row of the gather under way was rounded from; None: it is the row.
    """

    def __init__(
        self, unit: str = "", rank: int = 0, world: int = 1, seed: int = 0, segments: tuple[Segment, ...] = ()
    ) -> None:
        self.unit, self.rank, self.world, self.seed, self.segments = unit, rank, world, seed, segments
        self.finite: Tensor | None = None
        self.output: Tensor | None = None
        self.master: Callable[[], Tensor] | None = None
        self.tick = 0
        self._workspace: Workspace | None = None
        self._path = ""
        self._keep: _Later | None = None
        self._under_way = False
        self._tensors: dict[str, Tensor] = {}
        self._proposed: dict[str, Tensor] = {}
        self._spare: dict[str, Tensor] = {}
        self._children: dict[str, State] = {}

    def begin(
        self, finite: Tensor | None = None, output: Tensor | None = None, workspace: Workspace | None = None
    ) -> None:
        """A new collective: what the last one proposed takes effect.

        ``output``: where the caller wants the result; a method that writes it there (`result`) saves a copy.
        ``workspace``: where `scratch` and `message` take their memory from; without one it is always fresh.
        """
        self.commit()
        self.finite, self.output, self._under_way = finite, output, True
        self._workspace = workspace
        self.tick += 1
        for child in self._children.values():
            child.begin(finite, workspace=workspace)

    def judge(self, finite: Tensor) -> None:
        """Of the collective under way: were this part's inputs finite, whatever the rest of the unit's were?"""
        self.finite = finite
        for child in self._children.values():
            child.judge(finite)

    def end(self) -> None:
        """The collective is over: its memory, and where its result went, may be someone else's from now on."""
        self.output = self._workspace = self.master = None
        for child in self._children.values():
            child.end()

    def child(self, name: str, segments: tuple[Segment, ...] = ()) -> State:
        """The state of a part of the unit, which begins, commits, rolls back and is saved with the whole."""
        if name not in self._children:
            child = State(f"{self.unit}/{name}", self.rank, self.world, self.seed, segments)
            child.finite, child.tick, child._under_way = self.finite, self.tick, self._under_way
            child._workspace, child._path = self._workspace, f"{self._path}{name}/"
            self._children[name] = child
        if segments:
            self._children[name].segments = segments
        return self._children[name]

    def key(self, purpose: str, shared: bool = False) -> Key:
        """The random stream of this collective; ``shared``: the same on every rank."""
        words = (purpose, self.seed, self.unit, self.tick, "all" if shared else self.rank)
        digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
        return Key(int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little"))

    def get(self, name: str) -> Tensor | None:
        """The committed tensor, or None before the first one."""
        return self._tensors.get(name)

    def newest(self, name: str) -> Tensor | None:
        """What the collective under way proposed, or else the committed tensor; nothing is committed by asking."""
        return self._proposed.get(name, self._tensors.get(name))

    def with_children(self) -> Iterator[State]:
        """This state and those of the unit's parts."""
        yield self
        for child in self._children.values():
            yield from child.with_children()

    def scratch(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Uninitialised memory that is this method's until the collective ends."""
        if self._workspace is None:
            return torch.empty(shape, dtype=dtype, device=device)
        return self._workspace.take(self._path + name, shape, dtype, device)

    def message(self, rows: Tensor, layout: Layout, name: str = "message") -> Encoded:
        """Encoded rows to be filled, one for each of ``rows`` ``[R, n]``; valid until the collective ends.

        Padding is zero: equal inputs give equal bytes.
        """
        num_rows, n = rows.shape
        return Encoded.within(self.scratch(name, (num_rows, layout.row_bytes), torch.uint8, rows.device), layout, n)

    def result(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """A float32 tensor for the collective's result: the caller's own where it has the size and the dtype."""
        if self.output is not None and self.output.dtype == torch.float32 and self.output.numel() == math.prod(shape):
            return self.output.view(shape)
        return self.scratch("result", shape, torch.float32, device)

    def spare(self, name: str, like: Tensor, dtype: torch.dtype) -> Tensor:
        """A buffer to build the next version in (shape and device of ``like``), reused from step to step."""
        buffer = self._spare.pop(name, None)
        if buffer is None or buffer.shape != like.shape or buffer.dtype != dtype or buffer.device != like.device:
            buffer = torch.empty(like.shape, dtype=dtype, device=like.device)
        return buffer

    def propose(self, name: str, tensor: Tensor) -> None:
        """Make ``tensor`` the next version of ``name``; the old one stays when this rank's input was not finite.

        Which of the two is decided when the state is used next: on a GPU the answer is known by then, so that backward
        need not wait for it.
        """
        if self.finite is not None and self._keep is None:
            self._keep = _Later(self.finite)
        self._proposed[name] = tensor

    def put(self, name: str, tensor: Tensor) -> None:
        """Set ``name`` at once, beyond recall: for what every rank agreed on and a void step leaves true."""
        self._tensors[name] = tensor

    def commit(self) -> None:
        """Let what was proposed take effect; the old versions become spare buffers."""
        if self._keep is not None and not self._keep:
            self._spare.update(self._proposed)
            self._proposed.clear()
        for name, tensor in self._proposed.items():
            if name in self._tensors:
                self._spare[name] = self._tensors[name]
            self._tensors[name] = tensor
        self._proposed.clear()
        self._keep, self._under_way = None, False
        for child in self._children.values():
            child.commit()

    def rollback(self) -> None:
        """Forget the collective under way: what it proposed, and its tick."""
        self._spare.update(self._proposed)
        self._proposed.clear()
        self.tick -= self._under_way
        self._keep, self._under_way = None, False
        for child in self._children.values():
            child.rollback()

    @property
    def num_bytes(self) -> int:
        """Memory held, spare buffers included."""
        own = sum(t.nbytes for group in (self._tensors, self._proposed, self._spare) for t in group.values())
        return own + sum(child.num_bytes for child in self._children.values())

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors as they stand, with proposals committed, and the tick. Call it between steps."""
        self.commit()
        return dict(self._items(""))

    def _items(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        yield f"{prefix}tick", torch.tensor(self.tick)
        for name, tensor in self._tensors.items():
            yield prefix + name, tensor
        for name, child in self._children.items():
            yield from child._items(f"{prefix}{name}/")

    def layouts(self, prefix: str = "") -> Iterator[tuple[str, tuple[Segment, ...]]]:
        """Segments by the prefix that this state's and its children's tensors have in `state_dict`."""
        yield prefix, self.segments
        for name, child in self._children.items():
            yield from child.layouts(f"{prefix}{name}/")

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace everything by ``tensors``."""
        self.tick = int(tensors["tick"])
        self._keep, self._under_way = None, False
        self._tensors = {name: t.clone() for name, t in tensors.items() if name != "tick" and "/" not in name}
        self._proposed.clear()
        self._spare.clear()
        self._children.clear()
        for name in {name.partition("/")[0] for name in tensors if "/" in name}:
            inner = {key.partition("/")[2]: t for key, t in tensors.items() if key.startswith(f"{name}/")}
            self.child(name).load_state_dict(inner)
