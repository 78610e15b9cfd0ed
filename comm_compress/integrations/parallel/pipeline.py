"""A pipeline stage whose messages to its neighbours are encoded."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from comm_compress.core.compressor import Codec
from comm_compress.core.ledger import Collective
from comm_compress.core.tracing import span
from comm_compress.integrations.parallel import message as messages
from comm_compress.integrations.parallel.activations import Activations
from comm_compress.integrations.parallel.places.direction import Direction
from comm_compress.integrations.parallel.places.place import FLOATS, Place
from comm_compress.integrations.parallel.places.sample_memory import StepSamples

Way = Literal["forward", "backward"]
Samples = list[int] | None


class _Arriving(NamedTuple):
    """A message under way, where its tensor is to be, which of a stage's tensors it is, and the samples of its rows.

    ``samples``: None where nothing is remembered of them.
    """

    message: Tensor
    buffer: Tensor
    number: int
    samples: Samples


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

    With ``Activations(memory=...)`` activations travel as changes against what was sent of the same sample before
    (AQ-SGD): say which samples a step has, on every rank, with `samples`.

    Methods whose messages vary in size (entropy coding) travel on gloo alone, without a memory of samples
    (`comm_compress.integrations.parallel.message`).

    Every rank must name the same methods. Raises ValueError for a method that is no codec (with ``warmup_steps`` or
    ``min_numel``), or whose messages vary in size where that cannot be, when the stage is made; for tensors that are
    not float32, bfloat16 or float16, for micro-batches of different shapes, and for samples that are missing or not as
    many as rows, when the first one is to be sent or received.
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
        self._arriving: dict[tuple[Way, int], list[_Arriving]] = {}
        self._step = StepSamples()

    def _place(self, index: int) -> Place:
        """Return the place between the stages ``index - 1`` and ``index``."""
        name, group = f"stage{index - 1}->{index}", self.group or dist.group.WORLD
        assert group is not None
        place = self.activations.places.get(name) or self.activations.between_stages(name, group)
        for way in (place.forward, place.backward):
            _check(way, self.device)
        return place

    def samples(self, ids: Tensor) -> None:
        """Say which samples the rows of the next step's batch are: to be called on every rank before each ``step``.

            stage.samples(ids)
            schedule.step(tokens)

        ``ids``: int64 ``[batch]``, in the order of the batch and the same on all ranks. A sample keeps its number
        from epoch to epoch; validation has numbers of its own, or runs in `Activations.exact`. Without a memory
        (``Activations(memory=None)``) they are not needed. Raises ValueError for another dtype or shape, and for a
        sample that is there twice.
        """
        self._step.set(ids)

    def _prepare_forward_infra(self, num_microbatches: int, *args: Any, **kwargs: Any) -> Any:
        self._step.chunks.add(num_microbatches)
        return super()._prepare_forward_infra(num_microbatches, *args, **kwargs)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Return what sends the activations of one micro-batch to the next stage."""
        ops = super().get_fwd_send_ops(fwd_chunk_id)
        return ops if self._behind is None else self._sent(self._behind.forward, ops, fwd_chunk_id)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Return what receives the activations of one micro-batch from the stage before."""
        ops = super().get_fwd_recv_ops(fwd_chunk_id)
        return ops if self._before is None else self._received(self._before.forward, "forward", fwd_chunk_id, ops)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Return what sends the gradients of one micro-batch's inputs to the stage before."""
        ops = super().get_bwd_send_ops(bwd_chunk_id)
        return ops if self._before is None else self._sent(self._before.backward, ops, bwd_chunk_id)

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

    def _sent(self, way: Direction, ops: list[dist.P2POp], chunk: int) -> list[dist.P2POp]:
        """Return ``ops`` that send the encoded bytes of what the stock stage's ``ops`` would send."""
        codec = _codec(way)
        if codec is None:
            if way.counts is not None and not way.exact:
                for op in ops:
                    way.counts.message(op.tensor)
            return ops
        samples = self._samples_of(way, chunk, ops)
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
            message = _encoded(way, codec, tensor, number, samples)
            if message.numel():
                made.append(dist.P2POp(op.op, message, op.peer, op.group, op.tag))
        return made

    def _received(self, way: Direction, kind: Way, chunk: int, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        """Return ``ops`` that receive encoded bytes, to be decoded to where the stock stage's would write."""
        codec = _codec(way)
        if codec is None:
            return ops
        samples = self._samples_of(way, chunk, ops)
        arriving = self._arriving[kind, chunk] = []
        made = []
        for number, op in enumerate(ops):
            _check_dtype(way, op.tensor)
            if samples is None or way.by_sample is None:
                size = messages.room(codec, op.tensor)
            else:
                size = way.by_sample.byte_count(number, samples, op.tensor).total
            message = torch.empty(size, dtype=torch.uint8, device=op.tensor.device)
            arriving.append(_Arriving(message, op.tensor, number, samples))
            if size:
                made.append(dist.P2POp(op.op, message, op.peer, op.group, op.tag))
        return made

    def _decode(self, way: Direction, kind: Way, chunk: int) -> None:
        """Decode what has arrived for one micro-batch; the schedule has waited for it."""
        for arrived in self._arriving.pop((kind, chunk), ()):
            buffer = arrived.buffer
            collective = Collective(buffer.device)
            start = collective.now()
            with torch.no_grad(), span(f"{way.op} ({way.place})"), span("decode"):
                _decoded(way, arrived)
            collective.spent("decode", start)
            way.ledger.add(way.op, way.place, collective, 0, buffer.itemsize, None, 1)

    def _samples_of(self, way: Direction, chunk: int, ops: list[dist.P2POp]) -> Samples:
        """Return the samples of a micro-batch's rows; None where nothing is remembered of them."""
        if way.by_sample is None or not ops:
            return None
        return self._step.of(way.place, chunk, [op.tensor.shape for op in ops])


def _codec(way: Direction) -> Codec | None:
    """Return what encodes in this direction; None: nothing does (`Activations.exact`)."""
    if way.method is None or way.exact:
        return None
    assert isinstance(way.method, Codec)
    return way.method


def _encoded(way: Direction, codec: Codec, tensor: Tensor, number: int, samples: Samples) -> Tensor:
    """Return the bytes, uint8, that carry a stage's tensor ``number``, in memory of their own, and charge them."""
    collective = Collective(tensor.device)
    start = collective.now()
    with torch.no_grad(), span(f"{way.op} ({way.place})"), span("encode"):
        way.begin()
        if samples is None or way.by_sample is None:
            message, byte_count = messages.encode(codec, tensor.detach(), way.state)
        else:
            byte_count = way.by_sample.byte_count(number, samples, tensor)
            message = way.by_sample.encode(number, samples, tensor.detach())
        way.state.end()
    collective.spent("encode", start)
    collective.charge(byte_count, 1)
    way.ledger.add(way.op, way.place, collective, tensor.numel(), tensor.itemsize, None, 1)
    return message


def _decoded(way: Direction, arrived: _Arriving) -> None:
    """Write what has arrived to where the stock stage expects it."""
    buffer, codec = arrived.buffer.detach(), way.method
    assert isinstance(codec, Codec)
    if arrived.samples is not None and way.by_sample is not None:
        way.begin()  # what is remembered of these samples belongs to an optimizer step
        way.by_sample.decode_into(arrived.number, arrived.samples, arrived.message, buffer)
        way.state.end()
        return
    messages.decode(codec, arrived.message, buffer)


def _check(way: Direction, device: torch.device) -> None:
    """ValueError for a method that cannot encode one message, or whose messages the next stage cannot wait for."""
    method = way.method
    if method is None or (isinstance(method, Codec) and method.fixed_size):
        return
    key = "forward" if way.op == "activations" else "backward"
    refused = f"{way.place}: {key}: {method.name} cannot carry messages between stages"
    if not isinstance(method, Codec):
        raise ValueError(f"{refused}: give a method that encodes row by row, without warmup_steps and min_numel")
    fixed = "give a method of fixed size, without entropy, such as int8"
    if device.type != "cpu":
        raise ValueError(f"{refused} on {device.type}, where both must know a message's size: {fixed}")
    if way.by_sample is not None:
        raise ValueError(f"{refused} as changes of samples, whose size both must know: {fixed}, or memory=None")


def _check_dtype(way: Direction, tensor: Tensor) -> None:
    if tensor.dtype not in FLOATS:
        raise ValueError(
            f"{way.place}: a tensor of {tensor.dtype} cannot travel here, only fp32, bf16 and fp16: pass it to the "
            "stages that need it as an argument of the schedule's step"
        )
