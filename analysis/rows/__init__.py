"""Results rows: read, selected, sorted into arms and comparisons. Begin with `arms`.

`reading` reads a file's rows, `setting_roles` knows which settings tell arms apart, and `groups` finds comparisons that
differ in one thing. Loss curves: `curves`."""
