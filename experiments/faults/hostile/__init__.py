"""Hostile input, case by case: what strangers' files and absurd flags may do to our commands. Begin with `case`."""
