"""Compressed collectives for PyTorch FSDP2: real bytes on the wire, for reduce-scatter and all-gather.

import comm_compress as cc
handle = cc.attach(model, reduce_scatter="topk ratio=0.01", all_gather="int8")
...train as before...
print(handle.ledger.totals())
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from comm_compress import conformance, labels
    from comm_compress.core.compressor import Compressor
    from comm_compress.core.ledger import Ledger, Totals
    from comm_compress.drive.comparison import Comparison, Comparisons
    from comm_compress.integrations import ddp
    from comm_compress.integrations.fsdp.attach import Handle, attach
    from comm_compress.integrations.reshard import reshard
    from comm_compress.integrations.virtual import VirtualRanks
    from comm_compress.registry import available, make, register

# Imported when they are asked for: figures and command lines need `labels`, which is there at once, and not torch.
_HOME = {
    "Comparison": "drive.comparison",
    "Comparisons": "drive.comparison",
    "Compressor": "core.compressor",
    "Handle": "integrations.fsdp.attach",
    "Ledger": "core.ledger",
    "Totals": "core.ledger",
    "VirtualRanks": "integrations.virtual",
    "attach": "integrations.fsdp.attach",
    "available": "registry",
    "make": "registry",
    "register": "registry",
    "reshard": "integrations.reshard",
}

__all__ = [
    "Comparison",
    "Comparisons",
    "Compressor",
    "Handle",
    "Ledger",
    "Totals",
    "VirtualRanks",
    "attach",
    "available",
    "conformance",
    "ddp",
    "labels",
    "make",
    "register",
    "reshard",
]


_MODULES = {
    "conformance": "comm_compress.conformance",
    "ddp": "comm_compress.integrations.ddp",
    "labels": "comm_compress.labels",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"comm_compress.{_HOME[name]}"), name)
    return found


def __dir__() -> list[str]:
    return __all__
