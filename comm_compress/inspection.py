"""What a method makes of one tensor, and what it sends of it: without a model and without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from comm_compress.core.compressor import Compressor
from comm_compress.core.encoded import ByteCount
from comm_compress.core.segments import flatten, segments_of, unflatten
from comm_compress.core.state import State
from comm_compress.drive import simulate
from comm_compress.registry import AnyMethod, make

Direction = Literal["gradients", "parameters"]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Roundtrip:
    """What the other ranks receive of a tensor, and the bytes that take it there: of the last step.

    ``decoded``: float32, in the tensor's shape. ``bytes``: what rank 0 sends to all other ranks, by kind.
    ``elements``: how many elements it would have sent to them uncompressed, with the zeros that FSDP2 adds where the
    first dimension is no multiple of the number of ranks. ``error``: the norm of what is lost over the tensor's norm.
    ``cosine``: of the angle between the tensor and ``decoded``. Either is NaN where a norm that it is divided by is 0.
    """

    decoded: Tensor
    bytes: ByteCount
    elements: int
    error: float
    cosine: float

    @property
    def bits_per_element(self) -> float:
        """Bits that were sent for each element; the ledger's ``sent_bytes`` over its ``elements``, in bits."""
        return 8 * self.bytes.total / self.elements

    def __str__(self) -> str:
        kinds = ", ".join(f"{number} {kind}" for kind, number in self.bytes._asdict().items())
        return (
            f"{self.bits_per_element:.3f} bits an element (bytes: {kinds}), "
            f"relative error {self.error:.4f}, cosine {self.cosine:.4f}"
        )


def roundtrip(
    tensor: Tensor,
    method: AnyMethod,
    *,
    direction: Direction = "gradients",
    ranks: int = 2,
    seed: int = 0,
    steps: int = 1,
) -> Roundtrip:
    """Send ``tensor`` by ``method`` among virtual ranks, as FSDP2 would send a unit with this one parameter.

        seen = cc.roundtrip(gradient, "int4 hadamard")
        print(seen)     # 4.250 bits an element (bytes: 250000 values, ...), relative error 0.1176, cosine 0.9932
        seen.decoded    # float32, of the shape of gradient

    ``tensor``: any shape, float32, bfloat16 or float16; it is not written to. It is laid out as FSDP2 lays out a
    parameter, so its first dimension is what the ranks share out.

    ``direction``: "gradients" runs a reduce-scatter in which every rank holds all of ``tensor`` as its gradient;
    ``decoded`` is what one rank contributes to the sum. "parameters" runs an all-gather in which every rank holds its
    share of ``tensor``; ``decoded`` is what all ranks have after it.

    ``steps``: the same tensor is sent so many times and the last one counts, for methods that remember something
    (error feedback, powersgd's factors) or that begin with a warm-up. `delta` sends next to nothing the second time,
    because nothing has changed. ``seed``: of the method's random numbers.

    Raises ValueError for a method that cannot be built or is not for this direction or so many ranks, for a tensor
    that is empty or of another dtype, for fewer than two ranks, and for fewer than one step.
    """
    _check(tensor, ranks, steps)
    compressor = _built(method, direction, ranks)
    shape = tuple(tensor.shape) or (1,)
    segments = segments_of([("weight", shape)], ranks)
    shards = flatten([tensor.detach().reshape(shape)], ranks)
    lasting = direction == "parameters"  # as the hooks have it
    states = [State("root", rank, ranks, seed, segments, lasting) for rank in range(ranks)]
    send = _gradients if direction == "gradients" else _parameters
    for _ in range(steps):
        rows, sent = send(compressor, shards, states)
    (decoded,) = unflatten(rows.float(), segments)
    decoded = decoded.reshape(tensor.shape).clone()
    return Roundtrip(decoded, sent, shards[1:].numel(), *_compared(tensor, decoded))


def _check(tensor: Tensor, ranks: int, steps: int) -> None:
    if tensor.dtype not in DTYPES:
        raise ValueError(f"tensor: must be float32, bfloat16 or float16, not {tensor.dtype}")
    if not tensor.numel():
        raise ValueError(f"tensor: has no elements, its shape is {tuple(tensor.shape)}")
    if ranks < 2:
        raise ValueError(f"ranks = {ranks}: must be 2 or more; one rank sends nothing")
    if steps < 1:
        raise ValueError(f"steps = {steps}: must be 1 or more")


def _built(method: AnyMethod, direction: Direction, ranks: int) -> Compressor:
    """Build the method. ValueError when it is not for this direction or so many ranks."""
    if direction not in get_args(Direction):
        raise ValueError(f"direction = {direction!r}: must be one of {', '.join(get_args(Direction))}")
    compressor = make(method)
    if compressor is None:
        raise ValueError("method: none registers no hook and sends nothing; identity sends tensors as they are")
    traits = compressor.traits
    if not (traits.for_gradients if direction == "gradients" else traits.for_parameters):
        raise ValueError(f"direction = {direction!r}: {compressor.name} with these settings is not for {direction}")
    if traits.max_ranks is not None and ranks > traits.max_ranks:
        raise ValueError(f"ranks = {ranks}: {compressor.name} is defined for at most {traits.max_ranks}")
    return compressor


def _gradients(compressor: Compressor, shards: Tensor, states: Sequence[State]) -> tuple[Tensor, ByteCount]:
    """Run a reduce-scatter of rows ``[W, n]`` that all ranks hold; return what rank 0 contributed, and its bytes."""
    finite = compressor.mark(shards)
    for state in states:
        state.begin(finite)
    outcome = simulate.lockstep([compressor.reduce_scatter(shards, state) for state in states])
    return compressor.contribution(outcome.results[0].sent), outcome.sent[0]


def _parameters(compressor: Compressor, shards: Tensor, states: Sequence[State]) -> tuple[Tensor, ByteCount]:
    """Run an all-gather in which each rank holds one of the rows ``[W, n]``; return what rank 0 got, and its bytes."""
    for state in states:
        state.begin()
    outcome = simulate.lockstep([compressor.all_gather(*held) for held in zip(shards, states, strict=True)])
    return outcome.results[0], outcome.sent[0]


def _compared(tensor: Tensor, decoded: Tensor) -> tuple[float, float]:
    """Return the relative error and the cosine, computed in float64."""
    exact, received = tensor.detach().double().flatten(), decoded.double().flatten()
    norm = exact.norm()
    return float((received - exact).norm() / norm), float(exact @ received / (norm * received.norm()))
