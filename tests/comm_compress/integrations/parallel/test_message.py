"""Laws of one message between stages: what arrives is what the codec decodes, and a message has room."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import comm_compress as cc
from comm_compress.core.compressor import Codec
from comm_compress.core.state import State
from comm_compress.integrations.parallel import message as messages

METHODS = ["identity", "int8", "int4 hadamard", "identity entropy=rans", "int8 entropy=zstd", "ecsq no feedback"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def tensors(dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "empty": torch.zeros(0, 3, dtype=dtype),
        "one": torch.ones(1, dtype=dtype),
        "zeros": torch.zeros(5, 77, dtype=dtype),
        "noise": torch.randn(3, 101, generator=generator).to(dtype),
        "large": torch.randn(64, 129, generator=generator).to(dtype),
        "nan": torch.full((7, 3), torch.nan, dtype=dtype),
    }


def codec_of(method: str) -> Codec:
    codec = cc.make(method)
    assert isinstance(codec, Codec)
    return codec


def state() -> State:
    return State("activations/stage0->1", 0, 2, 1, lasting=False)


def sent(codec: Codec, tensor: Tensor) -> tuple[Tensor, Any]:
    own = state()
    own.begin()
    return messages.encode(codec, tensor, own)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_what_arrives_is_what_the_codec_decodes(method: str, dtype: torch.dtype) -> None:
    codec = codec_of(method)
    for name, tensor in tensors(dtype).items():
        message, byte_count = sent(codec, tensor)
        room = messages.room(codec, tensor)
        assert message.numel() == byte_count.total <= room, name
        arrived = torch.full((room,), 255, dtype=torch.uint8)  # what a shorter message does not reach is not zero
        arrived[: message.numel()] = message
        out = torch.full_like(tensor, 9.0)
        messages.decode(codec, arrived, out)
        if codec.traits.lossless or message[: messages.HEAD].tolist() == [255] * 8:  # the length -1
            assert torch.equal(out.view(torch.uint8), tensor.view(torch.uint8)), name
        elif tensor.numel():
            own = state()
            own.begin()
            expected = codec.decode(codec.encode(tensor.reshape(1, -1), own)).view_as(tensor).to(dtype)
            assert torch.equal(out, expected) or (out.isnan().all() and expected.isnan().all()), name


@pytest.mark.parametrize("method", [method for method in METHODS if not codec_of(method).fixed_size])
def test_frequent_bytes_get_shorter_and_noise_is_not_longer_than_it_was(method: str) -> None:
    codec, known = codec_of(method), tensors(torch.float32)
    assert sent(codec, known["zeros"])[0].numel() < known["zeros"].nbytes / 4
    assert sent(codec, known["one"])[0].numel() == messages.HEAD + known["one"].nbytes
    bits = torch.randint(-(2**31), 2**31, (40,), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
    message, _ = sent(codec_of("identity entropy=rans"), bits.view(torch.float32))
    assert message[: messages.HEAD].view(torch.int64).item() == messages.AS_IT_IS
