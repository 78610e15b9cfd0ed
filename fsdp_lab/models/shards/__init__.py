"""Which part of every parameter a rank holds: read `sharding` first; the norm of gradients that lie in parts."""
