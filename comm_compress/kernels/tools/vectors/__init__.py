"""Vector registers inside numba kernels: 32 numbers as one value, and what can be done with it."""
