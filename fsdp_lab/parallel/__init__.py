"""A model divided over ranks by heads, columns, positions and blocks: tensor, sequence and pipeline parallelism.

To read first: `division.layouts` (what is divided where), `division.wiring` (what travels), `division.split` (how a
model is divided), then `models.causal_lm`; `build` makes the trainer's model of them.
"""
