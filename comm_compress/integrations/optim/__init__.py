"""Optimizers with traffic of their own, counted and compressed.

Those that need whole matrices where each rank has rows of them:

`attach` is where to begin: it gives whoever optimises (`Muon`) an all-gather of updates through the transport, by any
method for parameters. `VirtualHandle` is the same of many ranks in one process.

Those that exchange something else than gradients between replicas: `between` (room `replicated`), then `DeMo`,
`OneBitAdam`, `Dion`, `EF21Muon` or `ZeroOneAdam`. `VirtualReplicas` has many replicas in one process.
"""

from __future__ import annotations

from comm_compress.integrations.optim.attach import Handle, attach
from comm_compress.integrations.optim.gathers import Gathers
from comm_compress.integrations.optim.matrices import matrices
from comm_compress.integrations.optim.muon import Muon
from comm_compress.integrations.optim.owners import check
from comm_compress.integrations.optim.replicated.attach import between, check_message
from comm_compress.integrations.optim.replicated.demo import DeMo
from comm_compress.integrations.optim.replicated.dion import Dion
from comm_compress.integrations.optim.replicated.ef21_muon import EF21Muon
from comm_compress.integrations.optim.replicated.exchange import Replicas
from comm_compress.integrations.optim.replicated.onebit_adam import OneBitAdam
from comm_compress.integrations.optim.replicated.virtual import VirtualReplicas
from comm_compress.integrations.optim.replicated.zero_one_adam import ZeroOneAdam
from comm_compress.integrations.optim.virtual import VirtualHandle

__all__ = [
    "DeMo",
    "Dion",
    "EF21Muon",
    "Gathers",
    "Handle",
    "Muon",
    "OneBitAdam",
    "Replicas",
    "VirtualHandle",
    "VirtualReplicas",
    "ZeroOneAdam",
    "attach",
    "between",
    "check",
    "check_message",
    "matrices",
]
