"""Settings of a training run that exclude each other; read `all_groups` first, which asks the others."""
