"""Kernels for CPU tensors, compiled by numba: the bytes of the reference, in one pass over memory where possible."""
