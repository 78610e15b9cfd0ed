"""Parallel styles for torch's `parallelize_module` whose communication goes through places of `Activations`.

    activations = cc.parallel.Activations("fp8", "int8", model=model)
    parallelize_module(model, mesh, {
        "layers.*.up": ColwiseParallel(activations=activations),
        "layers.*.down": RowwiseParallel(activations=activations),
    })

Parameters are the DTensors that torch's own styles make. A place is named after its module (its name in
``Activations(model=...)``), with ".input" or ".output" behind it. What no argument here mentions stays torch's own:
embeddings, outputs that are gathered, and `torch.distributed.tensor.parallel.SequenceParallel`, which sends no
activations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, parallel as stock
from torch.distributed.tensor.placement_types import Placement

from comm_compress.integrations.parallel.activations import Activations
from comm_compress.integrations.parallel.places.place import Place

_SAYS_GRADIENTS = "grad_placements" in inspect.signature(DTensor.from_local).parameters  # torch 2.13


def _place(activations: Activations, module: nn.Module, mesh: DeviceMesh, what: str) -> Place:
    """Return a new place at the ``what`` of ``module``. ValueError when the model does not have the module."""
    model = activations.model
    name = next((name for name, m in model.named_modules() if m is module), None) if model is not None else None
    if name is None:
        raise ValueError(
            f"parallel styles name places after modules: give Activations(model=...) the model that has this "
            f"{type(module).__name__}"
        )
    if mesh.ndim != 1:
        raise ValueError(f"{name}: tensor parallelism needs a mesh of one dimension, got {mesh.ndim}; take mesh['tp']")
    return activations.place(f"{name}.{what}" if name else what, mesh.get_group())


def _whole(x: Any, layout: Placement, place: Place, mesh: DeviceMesh) -> DTensor:
    """Return ``x``, replicated or sharded by ``layout``, replicated; its gradient, which every rank has a part of, is
    summed by the place."""
    local = x.to_local() if isinstance(x, DTensor) else x
    local = place.all_gather(local, layout.dim) if isinstance(layout, Shard) else place.copy(local)
    return _replicated(local, mesh)


def _replicated(local: Tensor, mesh: DeviceMesh) -> DTensor:
    """Return ``local``, which every rank has; its gradient stays each rank's own part."""
    if _SAYS_GRADIENTS:
        return DTensor.from_local(local, mesh, [Replicate()], run_check=False, grad_placements=[Partial()])
    return _Replicated.apply(local, mesh)  # type: ignore[no-untyped-call]


class _Replicated(torch.autograd.Function):
    """`DTensor.from_local` with ``grad_placements=[Partial()]`` for torch before 2.13, which sums gradients itself."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, mesh: DeviceMesh) -> DTensor:
        return DTensor.from_local(local, mesh, [Replicate()], run_check=False)

    @staticmethod
    def backward(ctx: Any, gradient: DTensor) -> tuple[Tensor, None]:
        part = gradient.to_local()
        return (part if gradient.placements[0].is_partial() else part / gradient.device_mesh.size()), None


class ColwiseParallel(stock.ColwiseParallel):  # type: ignore[misc]
    """Torch's column-wise style of linear layers, its input by a place.

    Nothing forward and the gradient's all-reduce backward (`Place.copy`); or, with ``input_layouts=Shard(dim)``, an
    all-gather forward and a reduce-scatter backward. ValueError when ``activations`` does not know the module.
    """

    def __init__(self, *, activations: Activations, **options: Any) -> None:
        super().__init__(**options)
        self.activations = activations

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        layout = self.input_layouts[0]
        if not isinstance(module, nn.Linear) or not isinstance(layout, Replicate | Shard):
            return super()._apply(module, device_mesh)  # type: ignore[no-any-return]
        place = _place(self.activations, module, device_mesh, "input")

        def prepared(_: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
            x = inputs[0]
            if isinstance(x, DTensor) and x.placements == (Replicate(),) and isinstance(layout, Shard):
                return inputs  # a module around this one has gathered it
            return (_whole(x, layout, place, mesh), *inputs[1:])

        outputs: Callable[..., Any] = partial(self._prepare_output_fn, self.output_layouts, self.use_local_output)
        return distribute_module(module, device_mesh, self._partition_linear_fn, prepared, outputs)  # type: ignore[no-any-return]


class RowwiseParallel(stock.RowwiseParallel):  # type: ignore[misc]
    """Torch's row-wise style of linear layers, its output by a place.

    An all-reduce forward and nothing backward; or, with ``output_layouts=Shard(dim)``, a reduce-scatter forward and an
    all-gather backward. ValueError when ``activations`` does not know the module.
    """

    def __init__(self, *, activations: Activations, **options: Any) -> None:
        super().__init__(**options)
        self.activations = activations

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        layout = self.output_layouts[0]
        if not isinstance(module, nn.Linear) or not isinstance(layout, Replicate | Shard):
            return super()._apply(module, device_mesh)  # type: ignore[no-any-return]
        self.desired_input_layouts = (Shard(-1),)
        place = _place(self.activations, module, device_mesh, "output")

        def finished(_: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
            # the gradient of a partial sum is that of the sum, as the place gives it
            local = output.to_local(grad_placements=[Replicate()])
            split = layout.dim if isinstance(layout, Shard) else None
            local = place.all_reduce(local) if split is None else place.reduce_scatter(local, split)
            return local if self.use_local_output else DTensor.from_local(local, mesh, [layout], run_check=False)

        inputs: Callable[..., Any] = partial(self._prepare_input_fn, self.input_layouts, self.desired_input_layouts)
        return distribute_module(module, device_mesh, self._partition_linear_fn, inputs, finished)  # type: ignore[no-any-return]


class PrepareModuleInput(stock.PrepareModuleInput):  # type: ignore[misc]
    """Torch's style for a module's only input, sharded to replicated: all-gather forward, reduce-scatter backward.

    ValueError for other layouts, and for ``use_local_output``, whose gradient nobody would sum.
    """

    def __init__(self, *, activations: Activations, input_layouts: Shard, **options: Any) -> None:
        super().__init__(input_layouts=input_layouts, desired_input_layouts=Replicate(), **options)
        if not isinstance(input_layouts, Shard) or self.use_local_output or self.with_kwargs:
            raise ValueError(
                "PrepareModuleInput: only one input from Shard(dim) to Replicate(), as a DTensor, goes by a place; use "
                "torch's own for others"
            )
        self.activations, self._layout = activations, input_layouts

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        place = _place(self.activations, module, device_mesh, "input")

        def prepared(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (_whole(inputs[0], self._layout, place, device_mesh), *inputs[1:])

        module.register_forward_pre_hook(prepared)
        return module
