"""Places in a model where activations are exchanged: `place` first, then `direction`, which runs their collectives."""
