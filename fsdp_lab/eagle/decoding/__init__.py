"""Decoding with a draft, and what it saves."""
