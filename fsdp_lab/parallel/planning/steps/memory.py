"""The memory of a rank: weights, gradients, Adam's two moments, and what forward keeps for backward. Float32.

Nothing is recomputed. An estimate: buffers of collectives and the allocator's own are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_lab.parallel.planning.job import FLOAT, Job
from fsdp_lab.parallel.planning.steps.work import PARTS

_STATES = 4  # weight, gradient, two moments
_SAVED_BY_MLP = {"gpt2": 6, "bert": 2}  # floats a column: gelu_new is made of six operations
_SAVED_BY_GATED_MLP = 4
_CHUNK = 32 << 20  # bytes of logits at a time (`fsdp_lab.models.architectures.linear_loss`)


def held_parameters(job: Job, layout: str, fractions: Mapping[str, float]) -> float:
    """Parameters of a rank that has these fractions of heads, columns and words."""
    shape, own = job.shape, PARTS[layout]
    attention = shape.attention_parameters * (fractions["heads"] if "attention" in own else 1)
    mlp = shape.mlp_parameters * (fractions["columns"] if "mlp" in own else 1)
    words = shape.word_parameters * (fractions["words"] if own["ends"] == "words" else 1)
    return shape.layers * (attention + mlp + shape.block_rest) + words + shape.rest


def saved_by_block(job: Job, layout: str, fractions: Mapping[str, float]) -> float:
    """Bytes that one block keeps between forward and backward."""
    shape, own = job.shape, PARTS[layout]
    here = 1.0 if layout in ("tp", "whole") else fractions["positions"]  # of the positions, between the parts
    heads = fractions["heads"] if "attention" in own else here
    columns = fractions["columns"] if "mlp" in own else here
    by_column = _SAVED_BY_MLP.get(shape.family, _SAVED_BY_GATED_MLP)
    entered = ("attention" in own) + ("mlp" in own)  # inputs of divided parts are whole
    keys_and_values = 2 * shape.keys * (1.0 if layout == "sp" else heads)
    floats = 2 * shape.queries * heads + keys_and_values + by_column * shape.columns * columns
    floats += shape.width * (entered + (2 - entered) * here + 3 * here)
    return FLOAT * job.tokens * floats


def layout_memory(job: Job, layout: str, fractions: Mapping[str, float]) -> float:
    """Bytes of a rank in a layout."""
    shape, own = job.shape, PARTS[layout]
    words = job.head_tokens * shape.vocabulary * FLOAT
    logits = words * fractions["words"] if own["ends"] == "words" else min(words, _CHUNK)
    states = _STATES * FLOAT * held_parameters(job, layout, fractions)
    return states + shape.layers * saved_by_block(job, layout, fractions) + logits


def whole_memory(job: Job, parameters: float, layers: int, sequences: float, has_head: bool = True) -> float:
    """Bytes of a rank with so many ``parameters`` (with their states) and undivided blocks on so many sequences."""
    saved = layers * saved_by_block(job, "whole", {}) * sequences / job.sequences
    logits = min(job.head_tokens * job.shape.vocabulary * FLOAT, _CHUNK) if has_head else 0
    return _STATES * FLOAT * parameters + saved + logits
