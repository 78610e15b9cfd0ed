"""Codecs at memory speed: every method against a plain copy and other people's code. Begin with `variants`."""
