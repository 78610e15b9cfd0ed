"""The codec that a sparsifier sends its kept values with, and what is asked of it."""

from __future__ import annotations

import torch
from torch import Tensor

from comm_compress.core.compressor import Codec
from comm_compress.core.state import State
from comm_compress.registry import AnyMethod, nested


def value_codec(config: AnyMethod | None, key: str = "values") -> Codec | None:
    """The codec for rows of kept values that ``config`` names; None where they go as float32.

    Its error feedback is off: feedback goes around the sparsifier, where it also sees what the codec loses.
    Raises ValueError that begins with ``key`` when the method does not encode row by row, needs to know
    parameters, remembers anything (the kept values are other coordinates at every step), or decodes with
    something that does not travel with its rows.
    """
    if config is None:
        return None
    made = nested(key, config, error_feedback=False)
    if not isinstance(made, Codec) or made.traits.needs_segments or not made.traits.for_gradients:
        raise ValueError(f"{key} = {config!r}: must be a method for gradients that encodes single rows of numbers")
    state = _begun()
    encoded = made.encode(probe().unsqueeze(0), state)
    if any(name.rpartition("/")[2] != "tick" for name in state.state_dict()):
        raise ValueError(f"{key} = {config!r}: must remember nothing between steps: kept coordinates change")
    if encoded.agreed:
        raise ValueError(f"{key} = {config!r}: must send all that its rows need to be decoded")
    return None if made.traits.lossless else made


def reproduces_its_values(codec: Codec) -> bool:
    """Are the codec's own decoded values, any part of them encoded anew, decoded to the same?

    True of roundings of single elements (natural, bf16); not where a scale depends on what else is in the row.
    """
    state = _begun()
    values = codec.decode(codec.encode(probe().unsqueeze(0), state)).float()
    for part in (values[:, ::3], values[:, values.shape[1] // 2 :], values[:, :1]):
        state.begin()
        again = codec.decode(codec.encode(part.contiguous(), state)).float()
        if not torch.equal(again, part):
            return False
    return True


def _begun() -> State:
    state = State()
    state.begin()
    return state


def probe() -> Tensor:
    """Return numbers of both signs over several orders of magnitude, float32 ``[600]``."""
    steps = torch.arange(1, 601, dtype=torch.float32)
    return torch.sin(steps * 1.7) * 10.0 ** torch.sin(steps * 0.37).mul_(3)
