"""How ranks learn of each other that one is lost or hangs."""
