"""The methods, one file a family. Importing this package registers all of them."""

from comm_compress.methods import (
    cast,
    control,
    delta,
    dgc,
    dither,
    float8,
    gradiveq,
    identity,
    lowrank,
    natural,
    randomk,
    sign,
    sketch,
    threshold,
    topk,
    uniform,
)

__all__ = [
    "cast",
    "control",
    "delta",
    "dgc",
    "dither",
    "float8",
    "gradiveq",
    "identity",
    "lowrank",
    "natural",
    "randomk",
    "sign",
    "sketch",
    "threshold",
    "topk",
    "uniform",
]
