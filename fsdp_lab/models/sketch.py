"""A model without its weights: built on the meta device, with a record of how each weight would have been initialised.

The big parameters of a sketch take no memory, so it can be sharded before it has any. Only then are its weights drawn:
one whole parameter at a time, of which each rank keeps its rows. They are, bit for bit, those that
``torch.manual_seed(seed); Model(config)`` gives, at every world size. The price: every rank draws all random numbers
and holds one whole parameter (the largest is the vocabulary's) while it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel

from fsdp_lab.models.adapted import plain_name, plain_parameters
from fsdp_lab.models.architectures.families import family_of
from fsdp_lab.models.shards.pieces import Piece
from fsdp_lab.models.shards.sharding import Held, held

_aten = torch.ops.aten
_DRAWS = (_aten.normal_.default, _aten.uniform_.default)
_CONSTANTS = (_aten.zero_.default, _aten.fill_.Scalar)


@dataclass(frozen=True)
class Fill:
    """The initialisation of one whole tensor; ``name`` is the parameter's, None where the model no longer holds it.

    ``row``: of one row alone (the embedding of padding, which is zero); None: of all.
    """

    name: str | None
    shape: torch.Size
    operator: Callable[..., Tensor]
    arguments: tuple[float, ...]
    row: int | None = None


@dataclass
class Sketch:
    """``model`` with its big tensors on the meta device; ``small`` holds the values of all other tensors, by name.

    ``shapes``: of the whole parameters. ``first_names``: of parameters with several names the first one, for each.
    ``pieces``: what the model was cut down to since, by parameter; another may have been dropped from it altogether.
    """

    model: PreTrainedModel
    fills: Sequence[Fill]
    small: dict[str, Tensor]
    shapes: dict[str, torch.Size]
    first_names: dict[str, str]
    pieces: dict[str, Piece] = field(default_factory=dict)

    @classmethod
    def of(cls, config: PreTrainedConfig) -> Sketch:
        """The sketch of ``config``'s model. What transformers refuses raises its ImportError or ValueError."""
        with _Recorder() as recorder:
            model = family_of(config).model(config)
        names = {_storage(p): name for name, p in model.named_parameters() if p.is_meta}
        fills = [
            Fill(names.get(_storage(tensor)), tensor.shape, operator, arguments, _row(tensor))
            for tensor, operator, arguments in recorder.fills
        ]
        small = {name: t.detach().clone() for name, t in _tensors(model) if not t.is_meta}
        every = dict(model.named_parameters(remove_duplicate=False))
        first = {id(p): name for name, p in reversed(every.items())}
        shapes = {name: p.shape for name, p in every.items()}
        return cls(model, fills, small, shapes, {name: first[id(p)] for name, p in every.items()})

    def allocate(self, module: nn.Module, device: torch.device, offloaded: bool = False) -> None:
        """Gives ``module`` (which holds the model, sharded or whole) memory on ``device``, and fills the small tensors.

        Those include what no file holds and no seed draws, such as the frequencies of rotary positions. ``offloaded``:
        parameters are on the CPU, but buffers on ``device``, because FSDP2 does not bring them there.
        """
        ties = _ties(module)
        module.to_empty(device="cpu" if offloaded else device)
        for submodule in module.modules() if offloaded else ():
            submodule._buffers |= {name: b if b is None else b.to(device) for name, b in submodule._buffers.items()}
        for owner, name, first, its_name in ties:  # two names of one tensor have become two tensors
            setattr(owner, name, getattr(first, its_name))
        for name, tensor in _tensors(self.model):
            if (plain := plain_name(name)) in self.small:
                held(tensor, self.pieces.get(name)).fill(self.small[plain])

    def held(self) -> dict[str, Held]:
        """What this process holds of each parameter, by its first name; adapters left out."""
        parameters = plain_parameters(self.model).items()
        return {self.first_names[name]: held(parameter, self.pieces.get(name)) for name, parameter in parameters}

    def draw(self, seed: int) -> None:
        """Initialises the weights: the same ones at every world size. No global random generator is touched."""
        generator = torch.Generator().manual_seed(seed)
        parameters = self.held()
        last = {fill.name: i for i, fill in enumerate(self.fills) if fill.row is None}
        assert parameters.keys() <= last.keys() | self.small.keys(), "every weight has a value"
        for i, fill in enumerate(self.fills):
            if fill.row is not None:
                self._fill_row(fill, parameters)
                continue
            is_kept = fill.name in parameters and last[fill.name] == i
            if fill.operator in _CONSTANTS and not is_kept:
                continue
            whole = torch.empty(fill.shape)
            if fill.operator in _DRAWS:
                fill.operator(whole, *fill.arguments, generator=generator)
            else:
                fill.operator(whole, *fill.arguments)
            if is_kept:
                parameters[str(fill.name)].fill(whole)

    @staticmethod
    def _fill_row(fill: Fill, parameters: dict[str, Held]) -> None:
        """Fill one row of a parameter, on the ranks that hold it."""
        if fill.name not in parameters or fill.row is None:
            return
        local, chunks = parameters[fill.name]
        for chunk in chunks:
            (here, *columns), rows = chunk.here, chunk.whole[0]
            if rows.start <= fill.row < rows.stop:
                fill.operator(local[(here.start + fill.row - rows.start, *columns)], *fill.arguments)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Allocates uninitialised memory on the meta device and records what it is filled with.

    A meta device context would do the first, but inside one transformers leaves out the initialisation.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fills: list[tuple[Tensor, Callable[..., Tensor], tuple[float, ...]]] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if operator is _aten.empty.memory_format:
            return operator(*args, **{**kwargs, "device": "meta"})
        if operator._schema.is_mutable and args[0].is_meta:
            assert operator in (*_DRAWS, *_CONSTANTS), f"an initialisation that cannot be repeated: {operator}"
            is_row = operator in _CONSTANTS and args[0].dim() == 1
            assert _is_whole(args[0]) or is_row, "whole tensors, or one row of a matrix with a constant"
            self.fills.append((args[0], operator, tuple(args[1:])))
        return operator(*args, **kwargs)


def _ties(module: nn.Module) -> list[tuple[nn.Module, str, nn.Module, str]]:
    """Where a parameter has a second name: the module and the name there, and where it has its first one."""
    first: dict[int, tuple[nn.Module, str]] = {}
    ties = []
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if id(parameter) in first:
                ties.append((owner, name, *first[id(parameter)]))
            else:
                first[id(parameter)] = owner, name
    return ties


def _is_whole(tensor: Tensor) -> bool:
    return tensor.numel() == tensor.untyped_storage().nbytes() // tensor.element_size()


def _row(tensor: Tensor) -> int | None:
    """Which row of a matrix ``tensor`` is; None: it is a whole tensor."""
    return None if _is_whole(tensor) else int(tensor.storage_offset()) // tensor.numel()


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
