"""Results rows: read, selected, sorted into comparisons, and their loss curves.

`reading` reads a file's rows, `quality` says what a run is judged by, `comparing` has arms, settings and comparisons,
and `curves` the loss curves.
"""
