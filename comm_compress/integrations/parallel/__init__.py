"""Activations of model parallelism: `Activations` says what is compressed, a `Place` exchanges it.

`ReplicatedGradients` sums what every rank has a part of the gradient of. `ColwiseParallel`, `RowwiseParallel` and
`PrepareModuleInput` are styles for torch's `parallelize_module`; `CompressedStage` is a stage for
`torch.distributed.pipelining`, and `SampleMemory` has it send changes of each sample. `Handles` are several handles as
one (`JoinedLedger`: their ledgers), beside which `StockSteps` computes what FSDP2's and DDP's own collectives send;
`way_back` says what may bring a sum of gradients back to all ranks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from comm_compress.integrations.parallel.activations import Activations
from comm_compress.integrations.parallel.handles import Handles, JoinedLedger
from comm_compress.integrations.parallel.places.place import Place
from comm_compress.integrations.parallel.places.sample_memory import SampleMemory
from comm_compress.integrations.parallel.replicas import ReplicatedGradients
from comm_compress.integrations.parallel.stock_steps import StockSteps
from comm_compress.integrations.parallel.way_back import way_back

if TYPE_CHECKING:
    from comm_compress.integrations.parallel.pipeline import CompressedStage
    from comm_compress.integrations.parallel.styles import ColwiseParallel, PrepareModuleInput, RowwiseParallel

__all__ = [
    "Activations",
    "ColwiseParallel",
    "CompressedStage",
    "Handles",
    "JoinedLedger",
    "Place",
    "PrepareModuleInput",
    "ReplicatedGradients",
    "RowwiseParallel",
    "SampleMemory",
    "StockSteps",
    "way_back",
]
_LATER = {  # DTensor and pipelining take a second to import
    "ColwiseParallel": "styles",
    "CompressedStage": "pipeline",
    "PrepareModuleInput": "styles",
    "RowwiseParallel": "styles",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
