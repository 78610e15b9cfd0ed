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
    from comm_compress.core import rounds
    from comm_compress.core.compressor import Codec, Compressor
    from comm_compress.core.encoded import ByteCount, Encoded, Field, Layout, RaggedRow
    from comm_compress.core.ledger import Ledger, Op, Totals
    from comm_compress.core.state import State
    from comm_compress.core.traits import Traits
    from comm_compress.describing import describe, describe_common
    from comm_compress.description import Common, Description, Setting
    from comm_compress.drive.comparison import Comparison, Comparisons
    from comm_compress.inspection import Roundtrip, roundtrip
    from comm_compress.integrations import ddp, optim, outer, parallel
    from comm_compress.integrations.audit.session import Audit, audit
    from comm_compress.integrations.audit.whole_program.running import audit_program
    from comm_compress.integrations.audit.whole_program.summing import ProgramAudit
    from comm_compress.integrations.fsdp.attach import Handle, attach
    from comm_compress.integrations.handle import BaseHandle
    from comm_compress.integrations.reshard import reshard
    from comm_compress.integrations.virtual import VirtualRanks
    from comm_compress.registry import available, make, register, require

__version__ = "0.1.0"  # pyproject.toml reads it here, so that a plain checkout knows it too

# Imported when they are asked for: figures and command lines need `labels`, which is there at once, and not torch.
_MODULE_OF = {
    "Audit": "integrations.audit.session",
    "BaseHandle": "integrations.handle",
    "ByteCount": "core.encoded",
    "Codec": "core.compressor",
    "Common": "description",
    "Comparison": "drive.comparison",
    "Comparisons": "drive.comparison",
    "Compressor": "core.compressor",
    "Description": "description",
    "Encoded": "core.encoded",
    "Field": "core.encoded",
    "Handle": "integrations.fsdp.attach",
    "Layout": "core.encoded",
    "Ledger": "core.ledger",
    "Op": "core.ledger",
    "ProgramAudit": "integrations.audit.whole_program.summing",
    "RaggedRow": "core.encoded",
    "Roundtrip": "inspection",
    "Setting": "description",
    "State": "core.state",
    "Totals": "core.ledger",
    "Traits": "core.traits",
    "VirtualRanks": "integrations.virtual",
    "attach": "integrations.fsdp.attach",
    "audit": "integrations.audit.session",
    "audit_program": "integrations.audit.whole_program.running",
    "available": "registry",
    "describe": "describing",
    "describe_common": "describing",
    "make": "registry",
    "register": "registry",
    "require": "registry",
    "reshard": "integrations.reshard",
    "roundtrip": "inspection",
}
_MODULES = {
    "conformance": "conformance",
    "ddp": "integrations.ddp",
    "labels": "labels",
    "optim": "integrations.optim",
    "outer": "integrations.outer",
    "parallel": "integrations.parallel",
    "rounds": "core.rounds",
}

__all__ = [
    "Audit",
    "BaseHandle",
    "ByteCount",
    "Codec",
    "Common",
    "Comparison",
    "Comparisons",
    "Compressor",
    "Description",
    "Encoded",
    "Field",
    "Handle",
    "Layout",
    "Ledger",
    "Op",
    "ProgramAudit",
    "RaggedRow",
    "Roundtrip",
    "Setting",
    "State",
    "Totals",
    "Traits",
    "VirtualRanks",
    "attach",
    "audit",
    "audit_program",
    "available",
    "conformance",
    "ddp",
    "describe",
    "describe_common",
    "labels",
    "make",
    "optim",
    "outer",
    "parallel",
    "register",
    "require",
    "reshard",
    "rounds",
    "roundtrip",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"comm_compress.{_MODULES[name]}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"comm_compress.{_MODULE_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
