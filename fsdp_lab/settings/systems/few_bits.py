"""This project's own arms, each with the claim that was tested for it."""

from __future__ import annotations

from fsdp_lab.settings.systems.kinds import Recipe, System

_SETTING = "`gpt2-mini`, 400 steps of 1,024 tokens of prose, two ranks; docs/findings/few-bits.md"
_GRID = (
    "Not for pretrained weights and small rates: moves far below the grid's step are held back, which cost a model of "
    "135 million parameters 53 % (docs/findings/going-on.md); six-bits follows the moves."
)

FEW_BITS = (
    System(
        name="eight-bits",
        about="gradients in int4 after a rotation, changes of parameters in int4: the same arm as sdp4bit",
        paper=None,
        does=(
            "SDP4Bit's two ideas on one level: nothing is tuned, and there is neither feedback nor warm-up. What "
            "./run_safe_training.sh demonstrates."
        ),
        here="All of it: this is the arm that was measured.",
        differs=("Nothing: rows of `eight-bits` and of `sdp4bit` are the same arm.",),
        measured=(f"8.30 bits in all, perplexity +0.13 % [-0.56, +0.82] against none, twelve pairs ({_SETTING})",),
        recipes=(
            Recipe(
                "eight-bits",
                "twelve pairs of seeds: within 1 % (experiments/recipes/bar.yaml)",
                {"comm_compress": "int4 hadamard + delta"},
                gradient_bits=4.25,
                parameter_bits=4.016,
            ),
        ),
    ),
    System(
        name="six-bits",
        about="gradients entropy coded, moves of parameters entropy coded with steps that follow them",
        paper=None,
        does=(
            "Gradients as in five-bits; parameters as whole numbers of a step that is twice the root mean square of "
            "what has moved since, entropy coded: small moves have small steps."
        ),
        here="All of it: this is the arm that was measured.",
        differs=("Not judged from fresh weights by as many pairs as the others.",),
        measured=(
            "5.72 bits in all, perplexity +0.02 % [+0.02, +0.03] against none, six pairs (`gpt2-mini`, 2,000 steps of "
            "prose, then 100 of encyclopedic text; docs/findings/going-on.md, with a pretrained model)",
        ),
        recipes=(
            Recipe(
                "six-bits",
                "six pairs of seeds of a trained model that goes on (experiments/recipes/continued.yaml)",
                {"comm_compress": "ecsq step=0.25 + delta values(ecsq step=2)"},
            ),
        ),
    ),
    System(
        name="five-bits",
        about="gradients entropy coded, moves of parameters on a grid",
        paper=None,
        does=(
            "Gradients as whole numbers times scales of rows and columns, steps of a quarter of a standard deviation, "
            "entropy coded, with error feedback; parameters as how far they moved on a grid of 5 % of their row's root "
            "mean square."
        ),
        here="All of it: this is the arm that was measured.",
        differs=(_GRID,),
        measured=(f"4.82 bits in all, perplexity +0.13 % [-0.10, +0.35] against none, seventy pairs ({_SETTING})",),
        recipes=(
            Recipe(
                "five-bits",
                "seventy pairs of seeds: within 0.5 % (experiments/recipes/five_bits.yaml)",
                {"comm_compress": "ecsq step=0.25 + delta mode=grid step=0.05"},
            ),
        ),
    ),
    System(
        name="three-bits",
        about="gradients as two thin factors, moves of parameters on a grid",
        paper=None,
        does=(
            "Each rank's gradients as two factors of rank 20 in int8, with the largest lines as they are and error "
            "feedback; parameters as in five-bits."
        ),
        here="All of it: this is the arm that was measured.",
        differs=("It has a cost, of about half a percent: its interval leaves out zero.", _GRID),
        measured=(f"2.84 bits in all, perplexity +0.44 % [+0.06, +0.82] against none, forty pairs ({_SETTING})",),
        recipes=(
            Recipe(
                "three-bits",
                "forty pairs of seeds: within 1 % (experiments/recipes/three_bits.yaml)",
                {"comm_compress": "lowrank rank=20 + delta mode=grid step=0.05"},
            ),
        ),
    ),
)
