"""Optimizers that need whole matrices where each rank has rows of them: their own traffic, counted and compressed.

`attach` is where to begin: it gives whoever optimises (`Muon`) an all-gather of updates through the transport, by any
method for parameters. `VirtualHandle` is the same of many ranks in one process.
"""

from __future__ import annotations

from comm_compress.integrations.optim.attach import Handle, attach
from comm_compress.integrations.optim.gathers import Gathers
from comm_compress.integrations.optim.matrices import matrices
from comm_compress.integrations.optim.muon import Muon
from comm_compress.integrations.optim.owners import check
from comm_compress.integrations.optim.virtual import VirtualHandle

__all__ = ["Gathers", "Handle", "Muon", "VirtualHandle", "attach", "check", "matrices"]
