"""Compressed collectives for PyTorch FSDP2: real bytes on the wire, for reduce-scatter and all-gather.

import comm_compress as cc
handle = cc.attach(model, reduce_scatter=cc.make("topk", {"ratio": 0.01}), all_gather=cc.make("int8"))
...train as before...
print(handle.ledger.totals())
"""

from comm_compress import methods  # noqa: F401  (registers every method)
from comm_compress.comparison import Comparison, Comparisons
from comm_compress.compressor import Compressor
from comm_compress.fsdp import Handle, attach
from comm_compress.ledger import Ledger, Totals
from comm_compress.registry import available, make, register
from comm_compress.reshard import reshard
from comm_compress.virtual import VirtualRanks

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
    "make",
    "register",
    "reshard",
]
