"""The label of a position where nothing is predicted."""

IGNORED = -100
"""The one that F.cross_entropy leaves out."""
