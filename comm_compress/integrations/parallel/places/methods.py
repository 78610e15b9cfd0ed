"""Which methods may carry activations, and which one does at a place."""

from __future__ import annotations

from collections.abc import Collection

from comm_compress.core.compressor import Codec, Compressor
from comm_compress.wrappers.by_layer import ByLayer
from comm_compress.wrappers.error_feedback import ErrorFeedback


def check(key: str, method: Compressor | None) -> None:
    """ValueError when ``method``, or one of its ``layers``, cannot carry activations; ``key``: the argument's name."""
    several = [method.rest, *method.layers.values()] if isinstance(method, ByLayer) else [method]
    for one in several:
        if one is not None and (why := refusal(one)):
            raise ValueError(f"{key}: {one.name} cannot carry activations: {why}")


def refusal(method: Compressor) -> str:
    """Say why ``method`` cannot carry activations, and what to do instead; empty when it can."""
    if isinstance(method, ErrorFeedback):
        return (
            "its error_feedback adds what the last step left out of the same gradient, and a place carries another "
            "batch's activations every time; set error_feedback=false"
        )
    if not method.traits.for_activations:
        return (
            "its messages are not decoded from themselves alone (it remembers earlier steps, needs to know parameters, "
            "shares random positions or sums on the wire); use identity, bf16, fp16, fp8, int8, int4, uniform, nc, or "
            "topk with error_feedback=false"
        )
    return ""


def check_parts(key: str, place: str, method: Compressor | None) -> None:
    """ValueError when ``method`` cannot carry parts of different sizes, whose bytes every rank must know beforehand."""
    if method is not None and not (isinstance(method, Codec) and method.fixed_size):
        raise ValueError(
            f"{key}: {method.name} cannot carry parts of different sizes at {place!r}: the bytes of a part must follow "
            "from its size; use a method of fixed size without entropy, warmup_steps and min_numel, or equal sizes"
        )


def at_place(method: Compressor | None, name: str) -> Compressor | None:
    """Return the method that carries activations at the place ``name``."""
    return method.method_of(name) if isinstance(method, ByLayer) else method


def check_names(key: str, method: Compressor | None, names: Collection[str]) -> None:
    """ValueError for a pattern of the method's ``layers`` that matches no place; ``key``: the argument's name."""
    if isinstance(method, ByLayer):
        try:
            method.check_names(names, "place")
        except ValueError as e:
            raise ValueError(f"{key}: {e}") from None
