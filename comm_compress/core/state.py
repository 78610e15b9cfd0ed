"""What a compressor remembers between steps, and how a step is taken back."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from comm_compress.core.encoded import Encoded, Layout
from comm_compress.core.segments import Segment
from comm_compress.core.workspace import Workspace

Item = TypeVar("Item")


class Key(NamedTuple):
    """64 bits that name one stream of random numbers; see `RandomKernels.random_bits`."""

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


class _Before(NamedTuple):
    """What an optimizer step began with: the changed tensors' versions (None: there was none), the parts there were."""

    tick: int
    segments: tuple[Segment, ...]
    tensors: dict[str, Tensor | None]
    children: tuple[str, ...]


class State:
    """Named tensors of one FSDP unit in one direction, and the versions of them that an optimizer step began with.

    A step may turn out to be void after its gradients were encoded (a NaN in a unit that came later, on
    any rank). So a compressor proposes new tensors; they take effect when the unit is used next, unless
    `rollback` came first. Where several collectives make one optimizer step (`begin`), `rollback` takes all of them
    back. The price is a second buffer for what is proposed, and a third one in such steps.

    ``unit``, ``rank``, ``world``, ``seed``: whose state this is; random numbers are a function of these and
    of ``tick``, the number of the current collective (1 for the first), and of nothing else.
    ``segments``: which parameter lies where in a row; empty when unknown. What is remembered belongs to one layout:
    setting another one raises ValueError once there are tensors.
    ``finite``: bool scalar tensor set by `begin`: were all of this rank's inputs finite? A state must never
    absorb the others.
    ``output``: where the caller wants the result of the collective under way, or None; see `result`.
    ``master``: reads the float32 ``[n]`` that the row of the gather under way was rounded from; None: it is the row.
    ``lasting``: what is `put` is beyond recall, and may be changed in place (parameters are gathered in earnest); a
    state of gradients is not, so that `rollback` takes back all of it.
    ``num_rows``: how many rows an input has; ``world`` unless told otherwise.
    """

    def __init__(
        self,
        unit: str = "",
        rank: int = 0,
        world: int = 1,
        seed: int = 0,
        segments: tuple[Segment, ...] = (),
        lasting: bool = True,
        num_rows: int | None = None,
    ) -> None:
        self.unit, self.rank, self.world, self.seed, self.lasting = unit, rank, world, seed, lasting
        self.num_rows = world if num_rows is None else num_rows
        self.parameters = self._segments = segments
        self.finite: Tensor | None = None
        self.output: Tensor | None = None
        self.master: Callable[[], Tensor] | None = None
        self.tick = 0
        self._workspace: Workspace | None = None
        self._path = ""
        self._keep: _Later | None = None
        self._tensors: dict[str, Tensor] = {}
        self._proposed: dict[str, Tensor] = {}
        self._spare: dict[str, list[Tensor]] = {}
        self._children: dict[str, State] = {}
        self._before = _Before(0, segments, {}, ())

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Which parameter lies where in a row; empty when nobody knows."""
        return self._segments

    @segments.setter
    def segments(self, segments: tuple[Segment, ...]) -> None:
        if segments != self._segments:
            self.commit()
        if self._tensors and self._segments and segments != self._segments:
            names = sorted({s.name for s in {*segments} ^ {*self._segments}})
            raise ValueError(
                f"unit {self.unit!r}: the set of parameters with a gradient has changed ({', '.join(names)}), and what "
                "the method remembers is of the earlier rows. Let every parameter of the unit have a gradient from the "
                "first step on: model.set_reduce_scatter_unused_params(True) (torch >= 2.13) counts unused ones as "
                "zeros; or put it into a unit of its own, or turn error_feedback off"
            )
        self._segments = segments

    @property
    def remembers(self) -> bool:
        """Is there any tensor, also of a part, that the next collective goes on from?"""
        return bool(self._tensors or self._proposed) or any(child.remembers for child in self._children.values())

    def begin(
        self,
        finite: Tensor | None = None,
        output: Tensor | None = None,
        workspace: Workspace | None = None,
        goes_on: bool = False,
    ) -> None:
        """Begin a new collective: what the last one proposed takes effect.

        ``output``: where the caller wants the result; a method that writes it there (`result`) saves a copy.
        ``workspace``: where `scratch` and `message` take their memory from; without one it is always fresh.
        ``goes_on``: with the optimizer step of the last collective (another micro-batch): `rollback` takes back both.
        """
        self.commit()
        if not goes_on:
            self._accept()
        self.finite, self.output = finite, output
        self._workspace = workspace
        self.tick += 1
        for child in self._children.values():
            child.begin(finite, workspace=workspace, goes_on=goes_on)

    def judge(self, finite: Tensor) -> None:
        """Say whether this part's inputs to the collective under way are finite, whatever those of others are."""
        self.finite = finite
        for child in self._children.values():
            child.judge(finite)

    def end(self) -> None:
        """End the collective: its memory, and where its result went, may be someone else's from now on."""
        self.output = self._workspace = self.master = None
        for child in self._children.values():
            child.end()

    def child(self, name: str, segments: tuple[Segment, ...] = ()) -> State:
        """The state of a part of the unit, which begins, commits, rolls back and is saved with the whole."""
        if name not in self._children:
            unit, whose = f"{self.unit}/{name}", (self.rank, self.world, self.seed)
            child = State(unit, *whose, segments, self.lasting, self.num_rows)
            child.finite, child.tick = self.finite, self.tick
            child._workspace, child._path = self._workspace, f"{self._path}{name}/"
            self._children[name] = child
        if segments:
            self._children[name].segments = segments
        return self._children[name]

    def key(self, purpose: str, shared: bool = False) -> Key:
        """Return the random stream of this collective; ``shared``: the same on every rank."""
        words = (purpose, self.seed, self.unit, self.tick, "all" if shared else self.rank)
        digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
        return Key(int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little"))

    def get(self, name: str) -> Tensor | None:
        """Return the committed tensor, or None before the first one."""
        return self._tensors.get(name)

    def newest(self, name: str) -> Tensor | None:
        """Return what the collective under way proposed, or else the committed tensor. Asking commits nothing."""
        return self._proposed.get(name, self._tensors.get(name))

    def with_children(self) -> Iterator[State]:
        """Yield this state, then those of the unit's parts."""
        yield self
        for child in self._children.values():
            yield from child.with_children()

    def scratch(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return uninitialised memory that is this method's until the collective ends."""
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
        """Return a float32 tensor for the collective's result: the caller's own where it has the size and the dtype."""
        if self.output is not None and self.output.dtype == torch.float32 and self.output.numel() == math.prod(shape):
            return self.output.view(shape)
        return self.scratch("result", shape, torch.float32, device)

    def spare(self, name: str, like: Tensor, dtype: torch.dtype) -> Tensor:
        """A buffer to build the next version in (shape and device of ``like``), reused from step to step."""
        buffers = self._spare.setdefault(name, [])
        buffer = buffers.pop() if buffers else None
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
        """Set ``name`` at once, whether or not this rank's input was finite: for what every rank agreed on."""
        if not self.lasting and tensor is not self._tensors.get(name):
            self._before.tensors.setdefault(name, self._tensors.get(name))
        self._tensors[name] = tensor

    def changing(self, name: str, tensor: Tensor) -> Tensor:
        """Return the committed ``tensor``, to be changed in place: a copy of it where the old version may be wanted."""
        if not self.lasting and name not in self._before.tensors:
            tensor = self.spare(name, tensor, tensor.dtype).copy_(tensor)
            self.put(name, tensor)
        return tensor

    def commit(self) -> None:
        """Let what was proposed take effect; versions that nothing goes back to become spare buffers."""
        if self._keep is not None and not self._keep:
            self._free(self._proposed)
        for name, tensor in self._proposed.items():
            old = self._tensors.get(name)
            if self._before.tensors.setdefault(name, old) is not old:
                self._free({name: old})
            self._tensors[name] = tensor
        self._proposed.clear()
        self._keep = None
        for child in self._children.values():
            child.commit()

    def _accept(self) -> None:
        """Begin an optimizer step: what came before it is not taken back any more."""
        self._free(self._before.tensors)
        self._before = _Before(self.tick, self._segments, {}, tuple(self._children))

    def _free(self, tensors: dict[str, Any]) -> None:
        """Keep the memory of ``tensors`` for next versions, if the method asks for such memory (`spare`)."""
        for name, tensor in tensors.items():
            if tensor is not None and name in self._spare:
                self._spare[name].append(tensor)
        tensors.clear()

    def rollback(self) -> None:
        """Forget the optimizer step under way: what its collectives proposed and put, and their ticks."""
        self._free(self._proposed)
        for name, tensor in self._before.tensors.items():
            self._free({name: self._tensors.pop(name, None)})
            if tensor is not None:
                self._tensors[name] = tensor
        self._before.tensors.clear()
        self.tick, self._segments = self._before.tick, self._before.segments
        self._keep = None
        self._children = {name: self._children[name] for name in self._before.children}
        for child in self._children.values():
            child.rollback()

    @property
    def num_bytes(self) -> int:
        """The bytes of all tensors held, spare buffers and those of parts included."""
        held = [*self._tensors.values(), *self._proposed.values(), *itertools.chain(*self._spare.values())]
        held += [t for t in self._before.tensors.values() if t is not None]
        return sum(t.nbytes for t in held) + sum(child.num_bytes for child in self._children.values())

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors and the tick. To be called between optimizer steps: the last one counts as made."""
        self.commit()
        for state in self.with_children():
            state._accept()
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

    def load_state_dict(
        self, tensors: Mapping[str, Tensor], layouts: Mapping[str, tuple[Segment, ...]] | None = None
    ) -> None:
        """Replace everything by ``tensors``; ``layouts``: the segments that they belong to, as `layouts` gave them."""
        self.tick, self._keep = int(tensors["tick"]), None
        self._segments = (layouts or {}).get("", self._segments)
        self._tensors = {name: t.clone() for name, t in tensors.items() if name != "tick" and "/" not in name}
        self._proposed.clear()
        self._spare.clear()
        self._children.clear()
        for name in {name.partition("/")[0] for name in tensors if "/" in name}:
            self.child(name).load_state_dict(_inside(tensors, name), _inside(layouts or {}, name))
        self._before = _Before(self.tick, self._segments, {}, tuple(self._children))


def _inside(items: Mapping[str, Item], name: str) -> dict[str, Item]:
    """Return the items of the part ``name``, by the keys that they have in that part."""
    return {key.partition("/")[2]: item for key, item in items.items() if key.startswith(f"{name}/")}
