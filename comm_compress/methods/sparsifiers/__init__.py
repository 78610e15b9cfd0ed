"""Few of the elements, or of their cosines, and where they stand: the largest, random ones, those above a threshold."""

from comm_compress.methods.sparsifiers import dct, dgc, randomk, threshold, topk

__all__ = ["dct", "dgc", "randomk", "threshold", "topk"]
