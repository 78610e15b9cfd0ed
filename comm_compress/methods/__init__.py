"""The methods, one file a family. Importing this package registers all of them."""

from comm_compress.methods import cast, dgc, identity, randomk, threshold, topk, uniform

__all__ = ["cast", "dgc", "identity", "randomk", "threshold", "topk", "uniform"]
