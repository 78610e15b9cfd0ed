"""Tensors that say they are on a GPU and are not: what code for GPUs does with devices, seen without one.

Inside `gpu`, ``x.cuda()`` and factories with ``device="cuda"`` give tensors whose device is cuda:0 and whose numbers
lie on the CPU. An operator that is given tensors of both devices is refused as CUDA refuses it; ``.numpy()`` is, too.
Kernels are the reference's, in torch operations, because there is nothing here that Triton could compile for. So this
finds buffers on the wrong device, calls that only a CPU has, and kernels that were picked by another device. It finds
no mistake in what a real GPU computes, and none of streams: all is done in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from comm_compress.kernels import dispatch
from comm_compress.kernels.coding import rans

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
_SAYS = {Tensor.device.__get__: GPU, Tensor.is_cuda.__get__: True, Tensor.is_cpu.__get__: False}  # type: ignore[attr-defined]
_ONLY_CPU = (Tensor.numpy, Tensor.__array__)
_MIXED = (Tensor.copy_, Tensor.__getitem__, Tensor.__setitem__)  # CUDA takes positions, and copies, from the CPU
_MOVES = (Tensor.to, Tensor.cpu, Tensor.cuda)
_WAITS = {
    *(Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__),
    *(torch.equal, Tensor.equal, torch.nonzero, Tensor.nonzero, torch.masked_select, torch.bincount, torch.unique),
}


class OnGpu(Tensor):
    """A tensor on the pretended GPU; ``held``: its numbers. All that is asked of it is answered by `_Gpu`."""

    held: Tensor

    @staticmethod
    def __new__(cls: type[OnGpu], held: Tensor) -> OnGpu:
        made: OnGpu = Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=GPU)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any, **__: Any) -> Any:
        """Nothing comes here: it would be a call that `_Gpu` did not see."""
        raise AssertionError(f"{func} was called outside of `gpu`")


class Pretended:
    """Copies tensors to the pretended GPU. ``waits``: how often the CPU had to wait for what the GPU would compute."""

    def __init__(self) -> None:
        self.waits = 0

    def __call__(self, x: Tensor) -> Tensor:
        """The tensor on the pretended GPU."""
        return x.cuda()


class _Gpu(TorchFunctionMode):
    """Does on the CPU what is asked of the GPU, and refuses what has tensors of both."""

    def __init__(self, there: Pretended) -> None:
        super().__init__()
        self._there = there

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        given.pop("pin_memory", None)
        tensors = [x for x in tree_leaves((args, given)) if isinstance(x, Tensor)]
        here = [x for x in tensors if isinstance(x, OnGpu)]
        if here and func in _SAYS:
            return _SAYS[func]
        self._there.waits += bool(here) and _has_to_wait(func, args, given)
        if here and func in _ONLY_CPU:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if func in _MOVES:
            return _moved(func, args, given)
        if any(_is_gpu(x) for x in tree_leaves((args, given))):
            return OnGpu(func(*tree_map(_here, args), **{name: tree_map(_here, x) for name, x in given.items()}))
        if not here:
            return func(*args, **given)
        _check(func, args, tensors)
        known = {id(x.held): x for x in here}
        result = func(*tree_map(_here, args), **{name: tree_map(_here, x) for name, x in given.items()})
        if isinstance(given.get("device"), torch.device | str):  # the CPU's: those of the GPU were seen above
            return result
        return tree_map_only(Tensor, lambda x: known.get(id(x)) if id(x) in known else OnGpu(x), result)


def _has_to_wait(func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> bool:
    """Does this call, which a tensor of the GPU takes part in, return only when the GPU has computed it?"""
    if func in (Tensor.to, Tensor.cpu):
        return isinstance(args[0], OnGpu) and not isinstance(_moved(func, args, given), OnGpu)
    if func is Tensor.copy_:
        return not isinstance(args[0], OnGpu)
    if func is Tensor.__getitem__:
        return any(isinstance(x, Tensor) and x.dtype == torch.bool for x in tree_leaves(args[1:]))
    return func in _WAITS


def _check(func: Any, args: tuple[Any, ...], tensors: list[Tensor]) -> None:
    """RuntimeError where CUDA gives one; single numbers may come from the CPU."""
    strange = any(not isinstance(x, OnGpu) and x.dim() > 0 for x in tensors)
    if strange and not (func in _MIXED and (func is Tensor.copy_ or isinstance(args[0], OnGpu))):
        raise RuntimeError(f"Expected all tensors to be on the same device, but {func} got cuda:0 and cpu")


def _moved(func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Tensor:
    """A tensor moved or cast: to where a device says, or a tensor; else it stays where it is."""
    x, rest = args[0], args[1:]
    asked = [y for y in (*rest, given.get("device")) if isinstance(y, torch.device | str | Tensor)]
    there = isinstance(x, OnGpu) if not asked else any(_is_gpu(y) or isinstance(y, OnGpu) for y in asked)
    there = {Tensor.cpu: False, Tensor.cuda: True}.get(func, there)
    cast = [_here(y) for y in rest if func is Tensor.to]
    moved = x.held if isinstance(x, OnGpu) else x
    moved = Tensor.to(moved, *cast, **{name: _here(y) for name, y in given.items()}) if cast or given else moved
    if isinstance(x, OnGpu) and there:
        return x if moved is x.held else OnGpu(moved)
    return OnGpu(moved.clone()) if there else moved.clone() if isinstance(x, OnGpu) else moved


def _here(x: Any) -> Any:
    """A tensor's numbers for a tensor of the GPU, the CPU for the GPU."""
    return x.held if isinstance(x, OnGpu) else CPU if _is_gpu(x) else x


def _is_gpu(device: Any) -> bool:
    return isinstance(device, torch.device | str) and str(device).startswith("cuda")


class _Stream:
    """The only stream: all that was asked for is done."""

    cuda_stream = 0

    def record_event(self) -> _Stream:
        return self

    def synchronize(self) -> None:
        """Nothing is under way."""


class _Event:
    """A moment on that stream."""

    def __init__(self, **_: Any) -> None:
        """As `torch.cuda.Event` is made."""

    def record(self, *_: Any) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing is under way."""

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: _Event) -> float:
        return 0.0


@contextmanager
def _without_triton() -> Iterator[None]:
    """Inside, no kernels in Triton are picked, which may be installed: it would compile for a GPU that is not there."""
    dispatch.implementation.cache_clear()
    try:
        with (
            mock.patch.object(dispatch, "has_triton", return_value=False),
            mock.patch.object(rans, "has_triton", return_value=False),
        ):
            yield
    finally:
        dispatch.implementation.cache_clear()


@contextmanager
def gpu() -> Iterator[Pretended]:
    """Inside, there is a pretended GPU; yields what copies a tensor there, and counts."""
    there = Pretended()
    with (
        _without_triton(),
        mock.patch("torch.cuda.current_stream", return_value=_Stream()),
        mock.patch("torch.cuda.Event", _Event),
        _Gpu(there),
    ):
        yield there
