"""The architectures that can be trained, and their loss: read `families` first, which names all of them."""
