"""The methods, one file a family. Importing this package registers all of them."""

from comm_compress.methods import cast, dgc, dither, float8, identity, natural, randomk, sign, threshold, topk, uniform

__all__ = [
    "cast",
    "dgc",
    "dither",
    "float8",
    "identity",
    "natural",
    "randomk",
    "sign",
    "threshold",
    "topk",
    "uniform",
]
