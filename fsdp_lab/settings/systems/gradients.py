"""Systems that compress gradients alone."""

from __future__ import annotations

from fsdp_lab.settings.systems.kinds import Paper, Recipe, System

_POWERSGD = System(
    name="powersgd",
    about="two low-rank factors of each matrix, by one step of subspace iteration, with error feedback",
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

GRADIENTS = (_POWERSGD, _DGC)
