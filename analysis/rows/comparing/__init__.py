"""Rows sorted into comparisons: one setting, its arms, their runs by seed. Begin with `comparisons`."""
