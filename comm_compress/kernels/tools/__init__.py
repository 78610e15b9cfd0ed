"""How numba kernels are compiled, cached and spread over threads."""
