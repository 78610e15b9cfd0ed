"""The optimizer steps of a run: the loop over them, and what is counted, measured and logged as it goes."""
