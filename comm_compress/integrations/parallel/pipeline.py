"""A pipeline stage whose messages to its neighbours are encoded."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import Encoded
from comm_compress.core.ledger import Collective
from comm_compress.core.tracing import span
from comm_compress.integrations.parallel.activations import Activations
from comm_compress.integrations.parallel.direction import Direction
from comm_compress.integrations.parallel.place import FLOATS, Place

Way = Literal["forward", "backward"]


class CompressedStage(PipelineStage):  # type: ignore[misc]  # torch gives no types for it
    """A stage of `torch.distributed.pipelining` that encodes what it sends and decodes what it receives.

        activations = cc.parallel.Activations(forward="int8", backward="bf16")
        stage = cc.parallel.CompressedStage(part, index, 2, device, activations=activations, group=group)
        Schedule1F1B(stage, n_microbatches=4, loss_fn=loss_fn).step(tokens)

    ``activations``: its ``forward`` method carries activations to the next stage, its ``backward`` method their
    gradients; without one, that direction is the stock stage's. The other arguments are those of
    `torch.distributed.pipelining.PipelineStage`, whose schedules all work as they are (tested: GPipe, 1F1B, interleaved
    1F1B, ZBV zero bubble). Where neighbouring stages are on one rank nothing travels, and nothing is encoded.

    The place between stages 0 and 1 is called "stage0->1", in the ledger, in states and in a method's ``layers``. One
    call is one message, sent or received; what a rank receives is entered with its time of decoding and no bytes. How
    long a message is under way, the schedule alone knows: ``wire_ms`` is 0. What the schedules send once, at their
    beginning, to agree on shapes is not counted.

    Every rank must name the same methods. Raises ValueError for a method whose messages have no fixed size, or that is
    no codec, when the stage is made; for tensors that are not float32, bfloat16 or float16, and for micro-batches of
    different shapes, when the first one is to be sent or received.
    """

    def __init__(
        self,
        submodule: nn.Module,
        stage_index: int,
        num_stages: int,
        device: torch.device,
        *,
        activations: Activations,
        group: dist.ProcessGroup | None = None,
        **further: Any,
    ) -> None:
        super().__init__(submodule, stage_index, num_stages, device, group=group, **further)
        self.activations = activations
        self._before = None if stage_index == 0 else self._place(stage_index)
        self._behind = None if stage_index == num_stages - 1 else self._place(stage_index + 1)
        self._shapes: dict[tuple[str, int], torch.Size] = {}
        self._arriving: dict[tuple[Way, int], list[tuple[Tensor, Tensor]]] = {}

    def _place(self, index: int) -> Place:
        """Return the place between the stages ``index - 1`` and ``index``."""
        name, group = f"stage{index - 1}->{index}", self.group or dist.group.WORLD
        assert group is not None
        place = self.activations.places.get(name) or self.activations.place(name, group)
        for way in (place.forward, place.backward):
            _check(way)
        return place

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Return what sends the activations of one micro-batch to the next stage."""
        ops = super().get_fwd_send_ops(fwd_chunk_id)
        return ops if self._behind is None else self._sent(self._behind.forward, ops)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Return what receives the activations of one micro-batch from the stage before."""
        ops = super().get_fwd_recv_ops(fwd_chunk_id)
        return ops if self._before is None else self._received(self._before.forward, "forward", fwd_chunk_id, ops)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Return what sends the gradients of one micro-batch's inputs to the stage before."""
        ops = super().get_bwd_send_ops(bwd_chunk_id)
        return ops if self._before is None else self._sent(self._before.backward, ops)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Return what receives the gradients of one micro-batch's outputs from the next stage."""
        ops = super().get_bwd_recv_ops(bwd_chunk_id)
        return ops if self._behind is None else self._received(self._behind.backward, "backward", bwd_chunk_id, ops)

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> Any:
        if self._before is not None:
            self._decode(self._before.forward, "forward", fwd_chunk_id)
        return super()._retrieve_recv_activations(fwd_chunk_id)

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> Any:
        if self._behind is not None:
            self._decode(self._behind.backward, "backward", bwd_chunk_id)
        return super()._retrieve_recv_grads(bwd_chunk_id)

    def _sent(self, way: Direction, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        """Return ``ops`` that send the encoded bytes of what the stock stage's ``ops`` would send."""
        codec = _codec(way)
        if codec is None:
            return ops
        made = []
        for number, op in enumerate(ops):
            tensor = op.tensor
            _check_dtype(way, tensor)
            known = self._shapes.setdefault((f"{way.op}/{way.place}", number), tensor.shape)
            if tensor.shape != known:
                raise ValueError(
                    f"{way.place}: a micro-batch of shape {tuple(tensor.shape)} after one of {tuple(known)}: all "
                    "micro-batches must have one shape; choose a batch that the number of micro-batches divides"
                )
            message = _encoded(way, codec, tensor)
            if message.numel():
                made.append(dist.P2POp(op.op, message, op.peer, op.group, op.tag))
        return made

    def _received(self, way: Direction, kind: Way, chunk: int, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        """Return ``ops`` that receive encoded bytes, to be decoded to where the stock stage's would write."""
        codec = _codec(way)
        if codec is None:
            return ops
        pairs = self._arriving[kind, chunk] = []
        made = []
        for op in ops:
            _check_dtype(way, op.tensor)
            size = codec.layout(op.tensor.numel(), op.tensor.dtype).row_bytes
            message = torch.empty(size, dtype=torch.uint8, device=op.tensor.device)
            pairs.append((message, op.tensor))
            if size:
                made.append(dist.P2POp(op.op, message, op.peer, op.group, op.tag))
        return made

    def _decode(self, way: Direction, kind: Way, chunk: int) -> None:
        """Decode what has arrived for one micro-batch; the schedule has waited for it."""
        for message, buffer in self._arriving.pop((kind, chunk), ()):
            codec = way.method
            assert isinstance(codec, Codec)
            collective = Collective(buffer.device)
            start = collective.now()
            with torch.no_grad(), span(f"{way.op} ({way.place})"), span("decode"):
                row = buffer.detach().view(1, -1) if buffer.numel() else buffer.detach().view(1, 0)
                layout = codec.layout(buffer.numel(), buffer.dtype)
                codec.decode_into(Encoded(message.unsqueeze(0), layout, buffer.numel()), row)
            collective.spent("decode", start)
            way.ledger.add(way.op, way.place, collective, 0, buffer.itemsize, None, 1)


def _codec(way: Direction) -> Codec | None:
    """Return what encodes in this direction; None: nothing does (`Activations.exact`)."""
    if way.method is None or way.exact:
        return None
    assert isinstance(way.method, Codec)
    return way.method


def _encoded(way: Direction, codec: Codec, tensor: Tensor) -> Tensor:
    """Return the bytes, uint8, that carry ``tensor``, in memory of their own, and charge them."""
    collective = Collective(tensor.device)
    start = collective.now()
    with torch.no_grad(), span(f"{way.op} ({way.place})"), span("encode"):
        way.begin()
        encoded = codec.encode(tensor.detach().reshape(1, tensor.numel()), way.state)
        way.state.end()
    collective.spent("encode", start)
    collective.charge(encoded.byte_count(0), 1)
    way.ledger.add(way.op, way.place, collective, tensor.numel(), tensor.itemsize, None, 1)
    return encoded.row(0)


def _check(way: Direction) -> None:
    """ValueError for a method whose messages the next stage cannot wait for, because it does not know their size."""
    if way.method is None or (isinstance(way.method, Codec) and way.method.fixed_size):
        return
    key = "forward" if way.op == "activations" else "backward"
    raise ValueError(
        f"{way.place}: {key}: {way.method.name} cannot carry messages between stages, whose size both must know: give "
        "a method that encodes row by row to a fixed size, without entropy, warmup_steps or min_numel, such as int8"
    )


def _check_dtype(way: Direction, tensor: Tensor) -> None:
    if tensor.dtype not in FLOATS:
        raise ValueError(
            f"{way.place}: a tensor of {tensor.dtype} cannot travel here, only fp32, bf16 and fp16: pass it to the "
            "stages that need it as an argument of the schedule's step"
        )
