"""Few of the elements, and where they stand: the largest, random ones, those above a threshold."""

from comm_compress.methods.sparsifiers import dgc, randomk, threshold, topk

__all__ = ["dgc", "randomk", "threshold", "topk"]
