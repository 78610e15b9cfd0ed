"""What methods cost in quality, and what foretells it."""
