"""One message between two stages of a pipeline: a tensor's bytes by a codec, and the tensor again.

A codec of fixed size sends its row, and whoever receives it knows how long that is. A row of any other length (entropy
coding, a threshold) comes after eight bytes that say its length; the receiver has room for the tensor as it is, and a
row that would be longer than that is not sent: the length -1 says that the tensor's own bytes follow. gloo takes a
message that is shorter than the receiver's memory, so what travels is the row alone. NCCL does not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from comm_compress.core.compressor import Codec
from comm_compress.core.encoded import ByteCount, Encoded
from comm_compress.core.state import State

HEAD = 8  # bytes of the length, int64
AS_IT_IS = -1


def room(codec: Codec, tensor: Tensor) -> int:
    """Return the bytes that a message of a tensor like ``tensor`` takes at most, for who receives it."""
    if codec.fixed_size:
        return codec.layout(tensor.numel(), tensor.dtype).row_bytes
    return HEAD + tensor.nbytes if tensor.numel() else 0


def encode(codec: Codec, tensor: Tensor, state: State) -> tuple[Tensor, ByteCount]:
    """Return the message of a float ``tensor``, uint8 ``[bytes]``, and its bytes by kind.

    A message of varying size has memory of its own; one of fixed size has that which the codec gave it.
    """
    if not tensor.numel() and not codec.fixed_size:
        return tensor.new_empty(0, dtype=torch.uint8), ByteCount()
    encoded = codec.encode(tensor.reshape(1, tensor.numel()), state)
    row, byte_count = encoded.row(0), encoded.byte_count(0)
    if codec.fixed_size:
        return row, byte_count
    if row.numel() < tensor.nbytes:
        length = row.numel()
    else:
        row, length = tensor.contiguous().view(-1).view(torch.uint8), AS_IT_IS
        byte_count = ByteCount(values=row.numel())
    head = torch.tensor([length], dtype=torch.int64).view(torch.uint8)
    return torch.cat([head, row]), byte_count + ByteCount(metadata=HEAD)


def decode(codec: Codec, message: Tensor, out: Tensor) -> None:
    """Write what a ``message`` (uint8, as much as `room` says) carries to ``out``, contiguous, of any float dtype."""
    rows = out.view(1, -1) if out.numel() else out.view(1, 0)
    if codec.fixed_size:
        layout = codec.layout(out.numel(), out.dtype)
        codec.decode_into(Encoded(message.unsqueeze(0), layout, out.numel()), rows)
    elif out.numel():
        length = int(message[:HEAD].view(torch.int64))
        if length == AS_IT_IS:
            rows.view(torch.uint8).copy_(message[HEAD:])
        else:  # in memory of its own, where decoders find the alignment that they need
            codec.decode_into(codec.received(message[HEAD : HEAD + length].clone(), out.numel()), rows)
