"""Entropy coding by static rANS (arXiv 1311.2540): the stream, its tables, and the kernels that write and read it."""
