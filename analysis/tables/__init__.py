"""Comparisons as tables, and the options that commands over rows share. Begin with `comparison`."""
