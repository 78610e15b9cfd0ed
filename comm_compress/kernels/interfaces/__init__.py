"""What the kernels of each topic compute: one typed protocol a topic, with shapes, dtypes and bytes.

The folders ``reference``, ``cpu`` and ``triton`` hold implementations: a module there has a function for every method
of its topic's protocol, and all implementations write the same bytes.
"""
