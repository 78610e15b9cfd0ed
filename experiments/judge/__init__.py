"""Somebody's own method, measured: laws, bytes, error, speed, short trainings. Begin with `__main__`, then `stage`.

The method's file is imported by processes of their own only (`stage`, and the trainer's ranks), each with a time limit.
"""
