"""Local steps: `comm_compress.outer`."""
