"""Results rows: read, selected, sorted into arms and comparisons."""
