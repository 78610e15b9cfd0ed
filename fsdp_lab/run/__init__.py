"""One run around its training loop: its folder, progress, results row and end."""
