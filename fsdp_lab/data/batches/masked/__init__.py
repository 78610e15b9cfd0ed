"""Sequences for masked models: two segments, and tokens of them to be filled in (BERT, arXiv 1810.04805).

Read `masking` first (which tokens), then `pairs` (which segments), then `dataset` (rows of batches).
"""
