"""Settings of a training run that exclude each other; read `conflicts` first, which asks the others."""
