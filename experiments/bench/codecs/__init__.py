"""Codecs at memory speed: every method against a plain copy and against other people's code."""
