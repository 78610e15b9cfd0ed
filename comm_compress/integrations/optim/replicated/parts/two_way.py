"""An average that is compressed on both ways, with what each way lost fed back: 1-bit Adam's and 0/1 Adam's."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from torch import Tensor

from comm_compress.core.compressor import Codec
from comm_compress.core.rounds import Request
from comm_compress.core.state import State
from comm_compress.integrations import allreduce
from comm_compress.integrations.replicas.messages import fed_back


def two_way_mean(rows: Tensor, codec: Codec, state: State, decay: float = 1.0) -> Generator[Request, Any, Tensor]:
    """The rounds of one replica with ``rows`` float32 ``[W, n]``; returns the mean ``[W, n]``, the same on all.

        rank d gets    sum_r C(rows_r[d] + error_r[d]) / W        every replica keeps its own errors, of all rows
        everyone gets  C(that mean + error_d)                     rank d keeps that of its row

    This is the "compressed all-reduce" of 1-bit Adam (arXiv 2102.02888): every replica is also the server of its row.
    ``decay``: what earlier errors are multiplied by before they are added; 0: they are forgotten.
    """
    method = fed_back(codec, decay)
    return (yield from allreduce.all_reduce(rows, method, method, state, rows.shape[0]))
