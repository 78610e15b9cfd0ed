"""Measuring ranks and their link for a plan: `measure` is the program."""
