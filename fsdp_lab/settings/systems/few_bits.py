"""This project's own arms, each with the claim that was tested for it."""

from __future__ import annotations

from fsdp_lab.settings.systems.kinds import Recipe, System

_SETTING = "`gpt2-mini`, 400 steps of 1,024 tokens of prose, two ranks; docs/findings/few-bits.md"
_GOING_ON = "`gpt2-mini`, 2,000 steps of prose, then 100 of encyclopedic text; docs/findings/going-on.md"
_MUON = "`gpt2-mini`, 2,000 steps of prose, then 100 of encyclopedic text; docs/findings/muon.md"
_CHART = "`gpt2-mini`, 400 steps of 1,024 tokens of prose; docs/findings/one-chart.md"
_LLAMA = "`llama-mini`, 400 steps of 1,024 tokens of prose; docs/findings/one-chart.md"
_ELSEWHERE = "three seeds a setting; docs/findings/other-settings.md"
_GRID = (
    "Not for pretrained weights and small rates: moves far below the grid's step are held back, which cost a model of "
    "135 million parameters 53 % (docs/findings/pretrained.md). In the recipe that ends in `-moves` a step is at most "
    "8 of the row's largest moves, which holds for them, too."
)


def _factors(name: str, every: int, about: str) -> Recipe:
    """The mean gradient of ``every`` steps as PowerSGD's two factors, in 4 bits there and back, under Muon."""
    return Recipe(
        name,
        about,
        {
            "outer": "local_sgd",
            "outer_by_gradient": "all",
            "outer_gradient_every": every,
            "outer_compress": "powersgd rank=32 min_compression_rate=1 values(ecsq step=0.3 no columns) rest=int8",
            "outer_gather": "int8",
        },
        {"dp_replicas": 2},
        measured_with={"optimizer": "muon"},
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
                "twelve pairs of seeds: within 1 % (experiments/recipes/fresh_weights/bar.yaml)",
                {"comm_compress": "int4 hadamard + delta"},
                gradient_bits=4.25,
                parameter_bits=4.016,
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
        measured=(
            f"`five-bits`: 4.82 bits, perplexity +0.13 % [-0.10, +0.35] against none, seventy pairs ({_SETTING})",
            f"`five-bits-moves`: 4.79 bits, +0.04 % [+0.03, +0.05], six pairs ({_GOING_ON}, with a pretrained model)",
            f"`five-bits-moves` in ten other settings: at most +0.25 % ({_ELSEWHERE})",
        ),
        recipes=(
            Recipe(
                "five-bits",
                "seventy pairs of seeds: within 0.5 % (experiments/recipes/fresh_weights/five_bits.yaml)",
                {"comm_compress": "ecsq step=0.25 + delta mode=grid step=0.05"},
            ),
            Recipe(
                "five-bits-moves",
                "for any learning rate: steps of the moves, six pairs of seeds "
                "(experiments/recipes/going_on/continued.yaml)",
                {"comm_compress": "ecsq step=0.25 + delta mode=grid step=0.1 moves=8"},
            ),
        ),
    ),
    System(
        name="three-bits",
        about="gradients as two low-rank factors, moves of parameters on a grid",
        paper=None,
        does=(
            "Each rank's gradients as two factors of rank 20 in int8, with the largest lines as they are and error "
            "feedback; parameters as in five-bits."
        ),
        here="All of it: this is the arm that was measured.",
        differs=("It has a cost, of about half a percent: its interval leaves out zero.", _GRID),
        measured=(
            f"`three-bits`: 2.84 bits, perplexity +0.44 % [+0.06, +0.82] against none, forty pairs ({_SETTING})",
            f"`three-bits-moves`: 2.74 bits, +0.31 % [+0.25, +0.37], six pairs ({_GOING_ON}, with a pretrained model)",
            f"`two-bits-moves`: 2.08 bits, +0.48 % [+0.41, +0.55], six pairs ({_GOING_ON})",
            f"the last two where the text is further away: +1.0 to +1.2 % and +1.6 to +1.7 % ({_ELSEWHERE})",
        ),
        recipes=(
            Recipe(
                "three-bits",
                "forty pairs of seeds: within 1 % (experiments/recipes/fresh_weights/three_bits.yaml)",
                {"comm_compress": "lowrank rank=20 + delta mode=grid step=0.05"},
            ),
            Recipe(
                "three-bits-moves",
                "for any learning rate: steps of the moves, six pairs of seeds "
                "(experiments/recipes/going_on/continued.yaml)",
                {"comm_compress": "lowrank rank=20 + delta mode=grid step=0.1 moves=8"},
            ),
            Recipe(
                "two-bits-moves",
                "the same with factors in int4, six pairs of seeds (experiments/recipes/going_on/continued.yaml)",
                {"comm_compress": "lowrank rank=20 values=int4 + delta mode=grid step=0.1 moves=8"},
            ),
        ),
    ),
    System(
        name="two-bits",
        about="gradients as low-rank factors and the lines that stand out, entropy coded; steps that follow the moves",
        paper=None,
        does=(
            "Each rank's gradients as two factors of rank 28, the long one in steps of a quarter of a standard "
            "deviation, the short one of 0.15, entropy coded; lines of more than five times the median one as they "
            "are, at most a fifth of a matrix's (mostly rows of embeddings); error feedback. Parameters in steps of "
            "at most 8 of the row's largest moves so far."
        ),
        here="All of it: this is the arm that was measured.",
        differs=(
            "It has a cost: half a percent where the text is far away, more with larger batches; there the recipe that "
            "ends in `-misfit` costs less.",
            "Known of models that go on from trained weights, not of fresh ones.",
            "Its bits are those of two ranks. More ranks leave each fewer rows of a matrix, and of few rows factors of "
            "rank 28 are not worth it: the recipe that ends in `-ranks` brings submatrices to ranks that sum them.",
        ),
        measured=(
            f"2.08 bits, perplexity +0.12 % [+0.10, +0.14] against none, six pairs ({_GOING_ON})",
            f"rank 20 instead: 1.75 bits, +0.17 % [+0.13, +0.21], six pairs ({_GOING_ON})",
            "a pretrained model of 135 million parameters, rank 20: 1.54 bits, -0.05 % [-0.26, +0.15], five pairs",
            f"other sizes, texts, rates: at most +0.46 % (mean); four times the batch: +0.76 % ({_ELSEWHERE})",
            "`two-bits-misfit`, four times the batch: 2.28 bits, +0.40 % [+0.33, +0.46], three pairs; with the same "
            "batch as `two-bits`, at 0.1 bits more (docs/findings/other-settings.md#larger-batches)",
            "eight ranks: `two-bits` 3.54 bits, +0.06 % [+0.04, +0.09], `two-bits-ranks` 2.06 bits, -0.04 % [-0.07, "
            "-0.01]; 32 ranks: 2.67 bits, +0.22 % [+0.20, +0.24], three pairs "
            "(docs/findings/many-ranks.md#few-bits-on-8-and-32-ranks)",
        ),
        recipes=(
            Recipe(
                "two-bits",
                "three seeds in each of eleven settings (experiments/recipes/going_on/elsewhere.yaml)",
                {
                    "comm_compress": (
                        "lowrank rank=28 lines=0.2 longer=5 values(ecsq step=0.25) right(ecsq step=0.15) "
                        "rest(ecsq step=0.25) + delta mode=grid step=0.1 moves=8"
                    )
                },
            ),
            Recipe(
                "two-bits-ranks",
                "for more than two ranks: by way of owners, factors of rank 20 there, steps of a quarter of a standard "
                "deviation back (experiments/recipes/going_on/continued_ranks.yaml)",
                {
                    "comm_compress": (
                        "owners there(lowrank rank=20 lines=0.2 longer=5 values(ecsq step=0.25) right(ecsq step=0.15) "
                        "rest(ecsq step=0.25)) back(ecsq step=0.25) + delta mode=grid step=0.1 moves=8"
                    )
                },
            ),
            Recipe(
                "two-bits-misfit",
                "for larger batches: the lines that go whole are those of which factors leave most "
                "(experiments/recipes/going_on/continued_batch.yaml)",
                {
                    "comm_compress": (
                        "lowrank rank=28 lines=0.3 longer=1.5 by_misfit values(ecsq step=0.25) right(ecsq step=0.15) "
                        "rest(ecsq step=0.25) + delta mode=grid step=0.1 moves=8"
                    )
                },
            ),
        ),
    ),
    System(
        name="muon-four-bits",
        about="under Muon: gradients and what it gathers entropy coded, parameters in steps that follow the moves",
        paper=None,
        does=(
            "Under Muon low rank costs more than under AdamW, and coarse steps of every element cost less. "
            "Gradients in steps of one standard deviation, with error feedback; what ranks gather for Muon as changes "
            "in steps of one; parameters in steps of at most 8 of the row's largest moves so far."
        ),
        here="All of it: this is the arm that was measured.",
        differs=("Known of one model that goes on from trained weights and of two from fresh ones, three seeds each.",),
        measured=(
            f"4.45 bits, perplexity +0.14 % [+0.04, +0.24] against Muon uncompressed ({_MUON})",
            f"from fresh weights: 4.31 bits, +0.3 % [-1.5, +2.0] against Muon uncompressed ({_LLAMA})",
            "steps of 0.25 and 2 for gradients: 6.40 bits, +0.12 % [+0.05, +0.20], and 3.61, +0.54 % [+0.07, +1.02]",
            "low rank instead, as in `two-bits`: 3.67 bits, +0.56 % [+0.44, +0.67]",
        ),
        recipes=(
            Recipe(
                "muon-four-bits",
                "three pairs of seeds (experiments/recipes/going_on/continued_muon.yaml)",
                {
                    "comm_compress": "ecsq step=1 + delta mode=grid step=0.1 moves=8",
                    "optimizer_compress": "delta values(ecsq step=1)",
                },
                {"optimizer": "muon"},
            ),
        ),
    ),
    System(
        name="muon-powersgd",
        about="under Muon replicas exchange low-rank factors of their mean gradient in 4 bits, each step or every few",
        paper=None,
        does=(
            "No replica takes a step alone. The mean gradient of all replicas, of one step or added up over two or "
            "five, makes one step of Muon. Of it PowerSGD's two factors of rank 32 are sent, entropy coded there and "
            "back, with error feedback; all replicas know the result, so nothing else is gathered. With five steps it "
            "is what local steps have to be better than (docs/library/local-steps.md)."
        ),
        here="All of it: these are the arms that were measured.",
        differs=(
            "Known of one small model from fresh weights, whose batches are small: where batches of several steps are "
            "too large, so are their costs.",
        ),
        measured=(
            "each step, two replicas: 1.62 bits, perplexity -33.8 % [-34.2, -33.4] against AdamW uncompressed (Muon "
            "uncompressed: 129 bits, -35.6 %); every second step: 0.81 bits, -27.1 % [-29.0, -25.2]; every fifth: "
            f"0.324 bits, -2.1 % [-6.3, +2.2]; each step under AdamW: +9.7 % [-1.2, +21.8] ({_CHART})",
            "on `llama-mini`, whose matrices are narrower, each step: 2.28 bits, -28.8 % [-35.2, -21.8] (Muon "
            "uncompressed: -30.5 %); every fifth step: 0.453 bits, +7.9 % [+3.3, +12.7]",
            f"every fifth step, eight replicas: 0.327 bits, -1.9 % [-3.0, -0.6], six pairs ({_CHART})",
            "the same with factors of rank 16: 0.171 bits, +12.0 % [+10.4, +13.6]; of rank 8: 0.093, +29.4 % "
            "[+25.5, +33.5]",
        ),
        recipes=(
            _factors("muon-powersgd", 1, "three pairs of seeds, two replicas (experiments/recipes/chart/chart.yaml)"),
            _factors(
                "muon-powersgd-2",
                2,
                "gradients of two steps, the same seeds (experiments/recipes/chart/chart.yaml)",
            ),
            _factors(
                "third-of-a-bit",
                5,
                "of five, six pairs of seeds, eight replicas (experiments/recipes/chart/third_bit.yaml)",
            ),
        ),
    ),
    System(
        name="muloco-powersgd",
        about="MuLoCo for short trainings, whose embeddings go by their mean gradient as two low-rank factors",
        paper=None,
        does=(
            "Replicas train by Muon and synchronise every 15 or 30 steps in 2 bits each way, with feedback, by an "
            "outer rate of 1 and a momentum of 0.3. Embeddings take no step alone: their gradients are added up over "
            "three steps, and the mean of all replicas is sent as PowerSGD's two factors of rank 16 in 4 bits. "
            "Everything goes by way of owners, so bits do not grow with the replicas."
        ),
        here="All of it: the arm that was measured (with eight replicas its embeddings' method was given as `layers`).",
        differs=(
            "The outer rate and momentum are for tens of synchronisations; with thousands, papers' are 0.7 and 0.9.",
            "Known of one small model from fresh weights; one run of sixteen replicas ended 5 % above AdamW.",
        ),
        measured=(
            "eight replicas, every 15 steps: 0.259 bits, perplexity -10.2 % [-12.6, -7.8] against AdamW uncompressed; "
            "every 30 steps: 0.167 bits, +2.2 % [+0.3, +4.1]; two replicas, every 30 steps: 0.162 bits, -21.4 % "
            f"[-22.8, -20.0], three pairs each ({_CHART})",
        ),
        recipes=(
            Recipe(
                "muloco-powersgd",
                "every 30 steps, three pairs of seeds (experiments/recipes/chart/chart.yaml and muloco_8.yaml)",
                {
                    "outer": "diloco",
                    "outer_compress": "binned feedback",
                    "outer_gather": "binned feedback",
                    "outer_learning_rate": 1.0,
                    "outer_momentum": 0.3,
                    "outer_by_gradient": "embeddings",
                    "outer_gradient_every": 3,
                    "outer_gradient_compress": (
                        "powersgd rank=16 min_compression_rate=1 values(ecsq step=0.3 no columns)"
                    ),
                    "optimizer_compress": "identity",
                },
                {"dp_replicas": 2, "optimizer": "muon"},
            ),
        ),
    ),
)
