"""A model divided over ranks by heads, columns, positions and blocks: tensor, sequence and pipeline parallelism.

To read first: `layouts` (what is divided where), `wiring` (what travels), `split` (how a model is divided), then
`causal_lm`.
"""
