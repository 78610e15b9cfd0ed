"""Systems whose optimizer exchanges something of its own between replicas, in place of gradients."""

from __future__ import annotations

from fsdp_lab.settings.systems.kinds import Paper, Recipe, System

_REPLICAS = {"dp_replicas": 2}
_CLIPS = "Each replica clips by the norm of its own gradients (--max_grad_norm); the paper does not say how it clips."

_DEMO = System(
    name="demo",
    about="each replica keeps its momentum, and sends the largest cosines of it",
    paper=Paper(
        "Peng, Chen, Su, Quesnelle, Kingma and Liu", 2024, "DeMo: Decoupled Momentum Optimization", "2411.19870"
    ),
    does=(
        "Each replica adds its gradient to a momentum of its own (decay 0.999), takes the 32 largest coefficients of "
        "the discrete cosine transform of every chunk of 64 x 64 out of it, and sends these to all others. Everyone's "
        "coefficients are averaged and transformed back, and the sign of that moves the weights."
    ),
    here=(
        "All of it, by --optimizer demo: the momentum is kept as error feedback is, so it is saved and taken back with "
        "a void step; the transform is the method `dct`, which can be used elsewhere, and another method can take its "
        "place (docs/optimizers.md)."
    ),
    differs=(
        "Gradients enter the momentum as in the paper's equations; its public code multiplies them by the rate first. "
        "Only while the rate changes are the two different.",
        "A coefficient's mean is over the replicas that sent it, as in the public code; the library has the other "
        'reading, too (`mean="replicas"`).',
        "Positions within a chunk take about 9 bits (Elias-Fano); the public code sends 64 each.",
        "Inside a replica FSDP2 may shard: then chunks are of a rank's rows.",
        "The rate is AdamW's of the preset; the public configuration has 4e-4 for both optimizers.",
        _CLIPS,
    ),
    published=(
        "up to 85 times less data a GPU than AdamW under DDP, with comparable loss and accuracy; language models of "
        "300M and 1B parameters (abstract, v2)",
    ),
    measured=(
        "36 times less than float32 gradients, validation PPL 2,221 where AdamW had 2,370 (gpt2-nano, 40 steps, two "
        "replicas, one seed, no rate tuned; docs/optimizers.md): it trains, not which is better",
    ),
    recipes=(
        Recipe(
            "demo",
            "32 of the cosines of every chunk of 64 x 64",
            {"optimizer_compress": "dct"},
            {**_REPLICAS, "optimizer": "demo"},
            optimizer_bits=0.641,
        ),
    ),
)

_ONE_BIT_ADAM = System(
    name="1-bit-adam",
    about="Adam first; then signs of momentum, both ways, behind a variance that stays as it was",
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
        "All of it, by --optimizer onebit_adam: plain Adam for --adam_freeze_after steps, then the frozen variance, "
        "and momentum compressed on both ways. The compression alone, of gradients that enter an ordinary AdamW under "
        "FSDP2, is `1-bit-adam-gradients`."
    ),
    differs=(
        "Scales are those of groups of 1,024 elements; the paper has one a tensor.",
        "How long Adam is plain is a number of steps; the paper compares the variance's norm with an earlier one.",
        "Adam's bias is corrected, as torch does; the public code leaves that out.",
        "An element whose variance is still 0 is not moved after the freeze; the public code wants a mask for such.",
        _CLIPS,
        "`1-bit-adam-gradients` and `1-bit-adam-one-scale` have neither frozen variance nor exchanged momentum, and no "
        "second compression: under FSDP2 the sum stays at its owner. The paper's point is that this loses quality, so "
        "a result of these two is none of 1-bit Adam's.",
    ),
    published=(
        "up to 5x less volume, with the convergence of Adam; up to 3.3x the throughput for BERT-Large's pre-training "
        "and 2.9x for SQuAD, on up to 256 GPUs (abstract)",
    ),
    measured=(
        "beside AdamW at a rate of 4e-4 (PPL 20,484 and 19,181, 40 steps of gpt2-nano, frozen after 20, one seed); "
        "at the preset's 4e-3 it broke down when the variance was frozen, compressed or not (docs/optimizers.md)",
    ),
    recipes=(
        Recipe(
            "1-bit-adam",
            "signs of momentum with a mean magnitude a group, there and back",
            {"optimizer_compress": "signsgd"},
            {**_REPLICAS, "optimizer": "onebit_adam"},
            optimizer_bits=2.0625,
        ),
        Recipe(
            "1-bit-adam-gradients",
            "the compression alone, of gradients under FSDP2: two means a group, one for each sign",
            {"comm_compress": "onebit warmup_steps=100"},
            gradient_bits=1.06,
        ),
        Recipe(
            "1-bit-adam-one-scale",
            "the same with one mean magnitude a group, for both signs",
            {"comm_compress": "signsgd warmup_steps=100"},
            gradient_bits=1.03,
        ),
    ),
)

_DION = System(
    name="dion",
    about="momentum whose updates have a low rank and orthonormal factors, which is all that replicas exchange",
    paper=Paper(
        "Ahn, Xu, Abreu, Fan, Magakyan, Sharma, Zhan and Langford",
        2025,
        "Dion: Distributed Orthonormalized Updates",
        "2504.05295",
    ),
    does=(
        "One step of subspace iteration on each matrix's momentum gives two thin factors, one of them made orthonormal "
        "by QR, of the other the columns are normalised; their product moves the weights. Replicas sum the factors in "
        "place of gradients, and each keeps in its momentum what the factors do not hold."
    ),
    here=(
        "All of it for whole replicas, by --optimizer dion: the blocks' matrices by Dion, the rest by AdamW with exact "
        "mean gradients; both all-reduces are counted. The rank is --dion_rank, a share of the shorter side; the "
        "matrices have a rate of their own, --dion_learning_rate, with the public code's scale for their shape."
    ),
    differs=(
        "Replicas are whole: FSDP2's shards inside one are refused: the paper's collectives among them are missing.",
        "QR is torch's; the public code has a randomised one for large matrices on GPUs, and turns wide matrices.",
        "Embeddings and head go to AdamW uncompressed: of a small model these are most of what is sent.",
        _CLIPS,
    ),
    published=(
        "a quarter of the rank is about as good as all of it at 3B parameters (README of microsoft/dion; 120M to 3B)",
    ),
    measured=(
        "validation PPL 2,329 where AdamW had 2,370 (gpt2-nano, 40 steps, two replicas, one seed, no rate tuned; "
        "docs/optimizers.md): it trains, not which is better",
    ),
    recipes=(
        Recipe(
            "dion",
            "a quarter of the rank",
            {"optimizer_compress": "identity"},
            {**_REPLICAS, "optimizer": "dion"},
        ),
    ),
)

OPTIMIZERS = (_DEMO, _ONE_BIT_ADAM, _DION)
