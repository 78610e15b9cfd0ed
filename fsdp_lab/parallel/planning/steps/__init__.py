"""One predicted step of each mode: what it computes, sends and holds."""
