"""The methods, one file a family. Importing this package registers all of them."""

from comm_compress.methods import (
    cast,
    dgc,
    ecsq,
    float8,
    gradiveq,
    identity,
    lowrank,
    natural,
    powersgd,
    randomk,
    sign,
    sketch,
    threshold,
    topk,
    uniform,
)
from comm_compress.methods import qsgd as dither
from comm_compress.methods import zero as control
from comm_compress.methods.delta import method as delta

__all__ = [
    "cast",
    "control",
    "delta",
    "dgc",
    "dither",
    "ecsq",
    "float8",
    "gradiveq",
    "identity",
    "lowrank",
    "natural",
    "powersgd",
    "randomk",
    "sign",
    "sketch",
    "threshold",
    "topk",
    "uniform",
]
