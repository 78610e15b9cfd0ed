"""Activations as changes against what was sent of the same sample before.

AQ-SGD (Wang et al., NeurIPS 2022, arXiv 2206.01299).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import ByteCount, Encoded
from comm_compress.core.state import State

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class SampleMemory:
    """How activations of each sample are remembered between two visits.

    ``dtype``: what they are kept in. Each side of a boundary holds samples x elements of one sample x bytes of it.
    ``device``: where they are kept, such as "cpu"; None: where the activations are.
    Raises ValueError for another dtype, and for what is no device.
    """

    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    device: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise ValueError(f"memory: dtype = {self.dtype!r}: must be one of {', '.join(_DTYPES)}")
        try:
            torch.device(self.device or "cpu")
        except RuntimeError as e:
            raise ValueError(f"memory: device = {self.device!r}: {e}") from None

    def kept(self, rows: Tensor) -> Tensor:
        """Return ``rows`` in the dtype and on the device in which they are kept; perhaps themselves."""
        return rows.to(self.device or rows.device, _DTYPES[self.dtype])


class ChangesBySample:
    """Messages in which a sample is whole at its first visit, and afterwards the change against what is remembered.

        first visit:   a is sent as it is;                        m[sample] <- a
        later visits:  q(a - m[sample]) is sent, in float32;      m[sample] <- m[sample] + decoded

    The receiver takes m[sample], before it is rounded to the memory's dtype, for the activations. Both sides add the
    same decoded numbers to the same memory, so it stays equal on both, bit for bit, and both know which samples travel
    whole: a message's size follows from its samples. What q loses stays in the next difference: where activations
    settle, the error shrinks from visit to visit if q loses less than it is given. A sample whose memory is not finite
    (a NaN, or more than fp16 holds) is forgotten on both sides, and sent whole at its next visit.

    A message is the encoded rows of the known samples, one a sample, then the new samples' own bytes, each part in the
    order of the samples. ``state`` holds the memory, one tensor for each sample and ``number`` (of the tensor among
    those that a stage hands over); so it is saved, loaded and taken back like any other state.
    """

    def __init__(self, codec: Codec, memory: SampleMemory, state: State) -> None:
        self.codec, self.memory, self.state = codec, memory, state

    def byte_count(self, number: int, samples: Sequence[int], like: Tensor) -> ByteCount:
        """Return the bytes of a message that carries ``like`` ``[samples, ...]``: its values are not looked at."""
        known, new = self._sorted(number, samples, like)
        n = like.numel() // max(1, len(samples))
        changes = self.codec.layout(n, torch.float32).byte_count.times(len(known))
        return changes + ByteCount(values=len(new) * n * like.itemsize)

    def encode(self, number: int, samples: Sequence[int], tensor: Tensor) -> Tensor:
        """Return the message, uint8 in memory of its own, for ``tensor`` ``[samples, ...]``, and remember it."""
        rows = tensor.reshape(len(samples), -1)
        known, new = self._sorted(number, samples, tensor)
        parts = [rows.new_empty(0, dtype=torch.uint8)]
        if known:
            remembered = self._remembered(number, samples, known, rows)
            encoded = self.codec.encode(rows[known].float().sub_(remembered), self.state)
            parts.append(encoded.buffer.view(-1))
            self._remember(number, samples, known, remembered.add_(self._decoded(encoded)))
        if new:
            whole = rows[new]
            parts.append(whole.view(torch.uint8).view(-1))
            self._remember(number, samples, new, whole)
        return torch.cat(parts)

    def decode_into(self, number: int, samples: Sequence[int], message: Tensor, out: Tensor) -> None:
        """Write what ``message`` carries to ``out`` ``[samples, ...]``, contiguous, and remember it."""
        rows = out.view(len(samples), -1)
        known, new = self._sorted(number, samples, out)
        start = 0
        if known:
            layout = self.codec.layout(rows.shape[1], torch.float32)
            start = len(known) * layout.row_bytes
            remembered = self._remembered(number, samples, known, rows)
            buffer = message[:start].view(len(known), -1)
            remembered += self._decoded(Encoded(buffer, layout, rows.shape[1]))
            self._remember(number, samples, known, remembered)
            rows[known] = remembered.to(rows.dtype)
        if new:
            whole = message[start:].clone().view(rows.dtype).view(len(new), -1)  # the clone is aligned
            self._remember(number, samples, new, whole)
            rows[new] = whole

    def _sorted(self, number: int, samples: Sequence[int], like: Tensor) -> tuple[list[int], list[int]]:
        """Return which of ``samples`` are known, and which are new, by their places in the message."""
        n = like.numel() // max(1, len(samples))
        known: list[int] = []
        new: list[int] = []
        for place, sample in enumerate(samples):
            kept = self.state.get(_name(number, sample))
            (known if kept is not None and kept.numel() == n > 0 else new).append(place)
        return known, new

    def _remembered(self, number: int, samples: Sequence[int], places: Sequence[int], rows: Tensor) -> Tensor:
        """Return what is remembered of the samples at ``places``, float32 ``[places, n]``, in memory of its own."""
        kept = [self.state.get(_name(number, samples[place])) for place in places]
        return torch.stack([t for t in kept if t is not None]).to(rows.device, torch.float32)

    def _decoded(self, encoded: Encoded) -> Tensor:
        out = torch.empty(encoded.num_rows, encoded.n, device=encoded.buffer.device)
        return self.codec.decode_into(encoded, out)

    def _remember(self, number: int, samples: Sequence[int], places: Sequence[int], rows: Tensor) -> None:
        """Remember ``rows``, one for each of ``places``; of a row that is not finite as kept, nothing."""
        kept = self.memory.kept(rows)
        finite = torch.isfinite(kept).all(1).tolist()
        for place, row, good in zip(places, kept, finite, strict=True):
            self.state.put(_name(number, samples[place]), row.clone() if good else row.new_empty(0))


def _name(number: int, sample: int) -> str:
    return f"tensor{number}.sample{sample}"


class StepSamples:
    """Which samples the rows of one step's batch are, handed out to each micro-batch once on each side of the stage."""

    def __init__(self) -> None:
        self._numbers: list[int] | None = None
        self._seen: set[tuple[str, int]] = set()
        self.chunks: set[int] = set()
        """Into how many micro-batches the stage's schedules split a batch."""

    def set(self, ids: Tensor) -> None:
        """Begin a step of the samples ``ids`` (int64 ``[batch]``). ValueError when they cannot be that."""
        if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.dim() != 1:
            what = f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
            raise ValueError(
                f"samples: {what}: must be an int64 tensor of shape [batch], a sample's number for each row"
            )
        numbers: list[int] = ids.tolist()
        if len({*numbers}) < len(numbers):
            twice = min(number for number in {*numbers} if numbers.count(number) > 1)
            raise ValueError(f"samples: {twice} is there twice: a step must have each sample once, its memory is one")
        self._numbers = numbers
        self._seen.clear()

    def of(self, place: str, chunk: int, shapes: Sequence[torch.Size]) -> list[int]:
        """Return the samples of the micro-batch ``chunk``, whose tensors have these ``shapes``, at ``place``.

        ValueError when none were said since this micro-batch was last here, and when there is not one for each row.
        """
        if self._numbers is None or (place, chunk) in self._seen:
            raise ValueError(
                f"{place}: activations are sent as changes of their samples, and nobody said which samples this step "
                "has: call stage.samples(ids) on every rank before each step of the schedule"
            )
        rows = {shape[0] if shape else 0 for shape in shapes}
        count, each = len(self._numbers), max(rows)
        if len(rows) > 1 or each * chunk >= count or count not in {each * chunks for chunks in self.chunks}:
            raise ValueError(
                f"{place}: {count} samples, and micro-batches of {', '.join(map(str, sorted(rows)))} rows, "
                f"{' or '.join(map(str, sorted(self.chunks)))} in a batch: stage.samples(ids) must say one for each "
                "row of the batch, and rows be the first dimension of what stages send"
            )
        self._seen.add((place, chunk))
        return self._numbers[each * chunk : each * (chunk + 1)]
