"""Notebooks in jupytext's percent format: plain Python that Jupyter opens."""
