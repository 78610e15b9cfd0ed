"""Mistakes that people make on a command line, and the message that must answer each. Begin with `case`."""
