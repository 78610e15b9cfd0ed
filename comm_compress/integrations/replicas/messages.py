"""An all-reduce in which every rank sends its whole message to every other: what sparse messages of few ranks want.

SparseLoCo (arXiv 2508.15706) and DeMo (2411.19870) exchange so. Each rank decodes and adds up all messages by itself,
in the order of ranks. So nothing is rounded a second time, and the sums are those of a reduce-scatter followed by an
exact all-gather, bit for bit. What is sent grows with the number of ranks: W - 1 messages, instead of (W - 1) / W of
one and (W - 1) / W of the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from comm_compress.core.compressor import Codec, Compressor
from comm_compress.core.encoded import ByteCount, Encoded, Layout
from comm_compress.core.rounds import Exchange, Gather, Reduced, Request
from comm_compress.core.state import State
from comm_compress.wrappers.error_feedback import ErrorFeedback, FeedbackConfig


class _Joined(Layout):
    """A row of each of these layouts, one behind the other."""

    def __init__(self, rows: Sequence[Layout]) -> None:
        super().__init__()
        self._rows = rows
        self.row_bytes = sum(row.row_bytes for row in rows)

    @property
    def byte_count(self) -> ByteCount:
        return sum((row.byte_count for row in self._rows), ByteCount())


def joined(messages: Sequence[Encoded], device: torch.device) -> Encoded:
    """Return messages of one row each, of fixed size, as one: what goes to one receiver at once. It may be empty."""
    buffers = [torch.empty(1, 0, dtype=torch.uint8, device=device), *(message.buffer for message in messages)]
    layouts = [message.layout for message in messages if message.layout is not None]
    return Encoded(torch.cat(buffers, 1), _Joined(layouts), sum(message.n for message in messages))


def taken_apart(buffer: Tensor, codec: Codec, widths: Sequence[int]) -> list[Encoded]:
    """Return what `joined` joined, with ``buffer`` uint8 ``[R, m]`` of R senders: rows of so many float32 elements."""
    layouts = [codec.layout(n, torch.float32) for n in widths]
    parts = torch.split(buffer, [layout.row_bytes for layout in layouts], 1)
    return [
        Encoded(part.clone(memory_format=torch.contiguous_format), layout, n)  # aligned, and its own
        for part, layout, n in zip(parts, layouts, widths, strict=True)
    ]


def codec_of(method: Compressor) -> Codec:
    """Return the codec that adds up messages of ``method``. ValueError when it has none with rows of one size."""
    inner = method.inner if isinstance(method, ErrorFeedback) else method
    if not isinstance(inner, Codec) or not inner.fixed_size:
        raise ValueError(
            f'exchange = "all_gather": {method.name} with these settings does not send one message of a size that all '
            'ranks know, which every rank could add up; use exchange="reduce_scatter", or settings without layers, '
            "warmup_steps, min_numel, entropy and Rice codes"
        )
    return inner


def all_reduce_of_messages(
    rows: Tensor, reduce: Compressor, gather: Compressor, state: State, divisor: float, *, heard: bool = True
) -> Generator[Request, Any, Tensor]:
    """The rounds of one all-reduce of ``rows`` ``[W, n]``, instead of `allreduce.all_reduce`; ``gather`` is unused.

    ``heard``: does anyone look at the result? Of virtual ranks, which all get the same, the first one's is enough: the
    others only end their own reduce-scatters, for what their states remember of them.
    """
    codec, world = codec_of(reduce), rows.shape[0]
    rounds = reduce.reduce_scatter(rows, state)
    request = next(rounds)
    assert isinstance(request, Exchange), "a codec takes one exchange"
    message = request.message
    assert message.layout is not None
    one_row = Encoded(message.buffer.view(1, -1), _Joined([message.layout] * world), world * message.n)
    received = yield Gather(one_row)
    by_sender = received.buffer.view(world, world, message.layout.row_bytes)
    everything = state.scratch("gathered", tuple(rows.shape), rows.dtype, rows.device)
    total = state.scratch("total", (message.n,), torch.float32, rows.device)
    for owner in range(world) if heard else (state.rank,):
        of_owner = message.replaced(by_sender[:, owner].contiguous())
        summed = _own_total(rounds, of_owner) if owner == state.rank else codec.sum_into(of_owner, total)
        everything[owner] = (summed / divisor).to(rows.dtype)
    return everything


def one_message(method: Compressor | None, *, of_fixed_size: bool = False) -> Codec:
    """Return ``method``, which sends one message and remembers no error of its own. ValueError, by the argument's name.

    So that whoever asks may keep what was not sent as something of his own. ``of_fixed_size``: all ranks must know how
    long a message is.
    """
    if method is None:
        raise ValueError('method = none: sends nothing; to send everything as it is give "identity"')
    inner = method.inner if isinstance(method, ErrorFeedback) else method
    said = method.settings.get("error_feedback") if isinstance(method, ErrorFeedback) else None
    if said not in (None, vars(FeedbackConfig())):
        raise ValueError(
            f"method: {method.name} has settings of error feedback, which this optimizer replaces; leave them out"
        )
    if inner.traits.no_feedback:
        raise ValueError(f"method: {method.name}: {inner.traits.no_feedback}")
    if not isinstance(inner, Codec) or not inner.traits.for_gradients:
        raise ValueError(
            f"method: {method.name} with these settings does not send one message that every rank could add up; use "
            "a method for gradients of one exchange (dct, topk, int8, signsgd), without layers, warmup_steps and "
            "min_numel"
        )
    if of_fixed_size and not inner.fixed_size:
        raise ValueError(
            f"method: {inner.name} with these settings has messages of a size that only their sender knows; leave out "
            "entropy and Rice codes"
        )
    return inner


def fed_back(codec: Codec, decay: float = 1.0) -> Compressor:
    """Return ``codec`` with what it loses fed back, times ``decay``; itself where it loses nothing."""
    return codec if codec.traits.lossless else ErrorFeedback(codec, FeedbackConfig(decay=decay))


def sum_of_whole_messages(
    row: Tensor, method: Compressor, state: State, added: Callable[[Encoded], Tensor] | None = None
) -> Generator[Request, Any, Tensor]:
    """The rounds that bring every rank the sum of all ranks' ``row`` ``[1, n]``: float32 ``[n]``, the same bits on all.

    A reduce-scatter of a single row, whose message goes to everyone instead of to one rank. So a message is one of the
    whole row, however many ranks there are. ``added``: what is made of the W messages, instead of the sum.
    """
    rounds = method.reduce_scatter(row, state)
    request = next(rounds)
    assert isinstance(request, Exchange), "a codec takes one exchange"
    received = yield Gather(request.message)
    made = None if added is None else added(received)
    total = _own_total(rounds, received)
    return total if made is None else made


def _own_total(rounds: Generator[Any, Any, Reduced], received: Encoded) -> Tensor:
    """Let the method end its reduce-scatter with what this rank received for itself."""
    try:
        rounds.send(received)
    except StopIteration as stop:
        reduced: Reduced = stop.value
        return reduced.total
    raise AssertionError("a codec takes one exchange")
