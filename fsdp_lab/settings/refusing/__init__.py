"""What is refused before any rank starts; read `early` first, which asks about flags, methods, presets and paths."""
