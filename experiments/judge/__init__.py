"""Somebody's own method, measured: laws, bytes, error, speed, short trainings. Begin with `__main__`, then `stage`.

``measures`` has a file for each thing that is measured, ``subject`` what they need of the method. Its file is imported
by processes of their own only (`stage`, and the trainer's ranks), each with a time limit.
"""
