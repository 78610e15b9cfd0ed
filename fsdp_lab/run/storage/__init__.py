"""Where a run writes: its paths, its folder and the lock on it, its loss curve."""
