"""What is divided in each layout.

A block is attention, a connection (residual and norm), the MLP, and another connection. Each of these works either on
all positions with a part of the weights (tensor parallel), or on a part of the positions with all of the weights
(sequence parallel):

    layout     attention    connection   MLP          connection
    tp         heads        whole        columns      whole
    sp         positions    positions    positions    positions     keys and values are gathered
    galaxy     heads        positions    columns      positions     arXiv 2405.17245
    galaxy2    heads        positions    positions    positions

Between a part with all positions and one with some of them, activations are gathered on the way in and
reduce-scattered on the way out. In ``tp`` the whole activations are on every rank, and are summed (all-reduced) behind
each divided part.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Which parts of a model are divided by weights; what is not works on a part of the positions.

    ``by_positions``: are activations between the parts, and so residuals and norms, divided by positions?
    ``attention``: are its heads divided? ``mlp``: are its columns? ``vocabulary``: are the words of embedding and head?
    """

    by_positions: bool
    attention: bool
    mlp: bool
    vocabulary: bool


LAYOUTS = {
    "tp": Layout(by_positions=False, attention=True, mlp=True, vocabulary=True),
    "sp": Layout(by_positions=True, attention=False, mlp=False, vocabulary=False),
    "galaxy": Layout(by_positions=True, attention=True, mlp=True, vocabulary=True),
    "galaxy2": Layout(by_positions=True, attention=True, mlp=False, vocabulary=True),
}
