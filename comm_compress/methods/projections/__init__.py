"""A few numbers for many elements together: low-rank factors, count-sketches, learnt linear codes."""

from comm_compress.methods.projections import gradiveq, lowrank, powersgd, sketch

__all__ = ["gradiveq", "lowrank", "powersgd", "sketch"]
