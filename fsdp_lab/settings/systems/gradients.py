"""Systems that compress gradients alone, or what an optimizer makes of them."""

from __future__ import annotations

from fsdp_lab.settings.systems.kinds import Paper, Recipe, System

_ONE_BIT_ADAM = System(
    name="1-bit-adam",
    about="signs of what is exchanged, with error feedback, after an uncompressed warm-up",
    paper=Paper(
        "Tang et al.",
        2021,
        "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence Speed",
        "2102.02888",
    ),
    does=(
        "Trains with plain Adam first. Then it freezes Adam's variance and exchanges momentum in place of gradients: "
        "signs and one scale, with error feedback on each rank and a second compression, with feedback, of the sum."
    ),
    here=(
        "The compression and the warm-up: signs with error feedback, uncompressed for the first 100 collectives of "
        'each unit. For another length type the label itself, such as --method "onebit warmup_steps=1000".'
    ),
    differs=(
        "The frozen variance and the exchanged momentum are the optimizer's, and AdamW here has neither: compressed "
        "gradients enter an ordinary AdamW. The paper's point is that this loses quality, so a result of this recipe "
        "is none of 1-bit Adam's.",
        "No second compression: under FSDP2 the sum stays at its owner, so there is no way back.",
        "Scales are those of groups of 1,024 elements. The paper has one scale a tensor for both signs: the nearest is "
        "`1-bit-adam-one-scale`; `1-bit-adam` has a mean for each sign, as 1-bit SGD (Seide et al., 2014) has.",
    ),
    published=(
        "up to 5x less volume, with the convergence of Adam; up to 3.3x the throughput for BERT-Large's pre-training "
        "and 2.9x for SQuAD, on up to 256 GPUs (abstract)",
    ),
    recipes=(
        Recipe(
            "1-bit-adam",
            "two means a group, one for each sign",
            {"comm_compress": "onebit warmup_steps=100"},
            gradient_bits=1.06,
        ),
        Recipe(
            "1-bit-adam-one-scale",
            "one mean magnitude a group, for both signs",
            {"comm_compress": "signsgd warmup_steps=100"},
            gradient_bits=1.03,
        ),
    ),
)

_POWERSGD = System(
    name="powersgd",
    about="two thin factors of each matrix, by one step of subspace iteration, with error feedback",
    paper=Paper(
        "Vogels, Karimireddy and Jaggi",
        2019,
        "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
        "1905.13727",
    ),
    does=(
        "P = M Q is summed over all ranks and orthogonalised, then Q = M^T P is summed; P Q^T stands for the gradient. "
        "Q is kept for the next step, and what was lost is added to the next gradient. Vectors go uncompressed."
    ),
    here=(
        "All of it, under FSDP2: each rank multiplies its own whole gradient, both sums are all-reduces of factors, "
        "and the owner of a shard makes only its rows. The rank is yours to say: --comm_config_json '{\"rank\": 8}'."
    ),
    differs=(
        "The paper has SGD with momentum and data parallelism; here AdamW follows, and gradients are sharded.",
        "A matrix that would not become half as large goes uncompressed (min_compression_rate), as in torch's hook for "
        "DDP.",
    ),
    recipes=(Recipe("powersgd", "rank 4 unless told otherwise", {"comm_compress": "powersgd"}),),
)

_DGC = System(
    name="dgc",
    about="the largest thousandth of accumulated momentum, with momentum correction",
    paper=Paper(
        "Lin, Han, Mao, Wang and Dally",
        2018,
        "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training",
        "1712.01887",
    ),
    does=(
        "Each rank accumulates momentum, and momentum into a velocity; it sends the velocity's largest 0.1 %, and "
        "forgets momentum and velocity where it has sent. The share falls exponentially over the first epochs."
    ),
    here=(
        "Momentum correction, factor masking, clipping (--comm_config_json '{\"clip_unit_norm\": 0.5}') and the "
        "warm-up ('{\"warmup_ratio_steps\": 1000}': in collectives, as how long it lasts is yours to say)."
    ),
    differs=(
        "DGC is written for SGD, whose momentum it replaces. AdamW here has its own moments of what arrives, so this "
        "is another algorithm than the paper's.",
        "The threshold is exact, where the paper's code takes it from a sample.",
    ),
    published=("270 to 600 times less gradient traffic (abstract; image, speech and language models of 2018)",),
    recipes=(Recipe("dgc", "0.1 % of every destination row", {"comm_compress": "dgc"}, gradient_bits=0.044),),
)

GRADIENTS = (_ONE_BIT_ADAM, _POWERSGD, _DGC)
