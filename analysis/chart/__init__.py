"""The chart: compression methods, optimizers and local steps, on one axis of bits. Begin with `places`."""
