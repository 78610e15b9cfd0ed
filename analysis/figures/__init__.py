"""Figures of results: one file a figure, with functions from rows to numbers and from numbers to a matplotlib Figure.

Begin with `step_time`, which is short and built like the others; `drawing` holds what they share."""
