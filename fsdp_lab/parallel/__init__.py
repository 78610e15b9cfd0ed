"""A model divided over ranks by heads, columns, positions and blocks: tensor, sequence and pipeline parallelism.

To read first: `layouts` (what is divided where), then `wiring` (what travels), then `split` (how a model is divided).
"""
