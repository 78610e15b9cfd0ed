"""What all implementations of a kernel share: the formats of their bytes, and their arguments."""
