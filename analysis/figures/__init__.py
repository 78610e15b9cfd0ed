"""Figures of results: one file a figure, each a function from data to a matplotlib Figure."""
