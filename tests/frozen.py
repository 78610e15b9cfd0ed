"""Imported last by the server that ranks are forked from: what it holds is for no garbage collector to look through.

A full collection in a rank would visit millions of objects of imported modules, and copy the memory that they are in.
"""

import gc

gc.collect()
gc.freeze()
gc.enable()
