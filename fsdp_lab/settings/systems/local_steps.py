"""Systems whose replicas train by themselves and synchronise now and then."""

from __future__ import annotations

from fsdp_lab.settings.systems.kinds import Paper, Recipe, System

_REPLICAS = {"dp_replicas": 2}
_SPARSE = "topk selection=chunked chunk_size=4096 ratio=0.015625 indices=packed values{} feedback(decay=0.95)"
_EVERY = "How many steps lie between two synchronisations is yours to say: --outer_every, 30 unless told otherwise."
_UNTUNED = (
    "The outer rate and momentum are DiLoCo's, for thousands of synchronisations. With 13 of them DiLoCo and "
    "MuLoCo ended lower with --outer_learning_rate 1 --outer_momentum 0.3 (docs/findings/one-chart.md#outer-rates)."
)
_CHART = "`gpt2-mini`, 400 steps of 1,024 tokens of prose, two replicas; docs/findings/one-chart.md"

_DILOCO = System(
    name="diloco",
    about="replicas train alone, and take an outer step with Nesterov momentum every so many steps",
    paper=Paper(
        "Douillard et al.", 2023, "DiLoCo: Distributed Low-Communication Training of Language Models", "2311.08105"
    ),
    does=(
        "Each replica takes many AdamW steps by itself. Then the mean of how far replicas have moved is taken for a "
        "gradient, and an outer SGD with Nesterov momentum (rate 0.7, momentum 0.9) moves what all begin again from."
    ),
    here=f"All of that, by --outer diloco; within a replica FSDP2 works as ever, by any method. {_EVERY}",
    differs=(
        "All replicas take part in every synchronisation: none comes or goes.",
        _UNTUNED,
    ),
    published=("8 replicas on C4 as good as synchronous training, with 500 times less communication (abstract)",),
    recipes=(Recipe("diloco", "float32 between replicas", {"outer": "diloco"}, _REPLICAS, outer_bits=2.133),),
)

_STREAMING = System(
    name="streaming-diloco",
    about="DiLoCo in parts that are synchronised in turn, in 4 bits, while replicas train on",
    paper=Paper(
        "Douillard et al.",
        2025,
        "Streaming DiLoCo with overlapping communication: Towards a Distributed Free Lunch",
        "2501.18512",
    ),
    does=(
        "Synchronises fragments of the model in turn, uses what arrives some steps after it was sent, mixed with the "
        "replica's own weights, and sends 4-bit floats (E3M0), which are added up in float32."
    ),
    here=(
        "Parts in turn (four), sent 5 steps before they are used, mixed half and half, in int4 there and back. "
        f"{_EVERY}"
    ),
    differs=(
        "int4 with block scales in place of E3M0.",
        "Parts are runs of neighbouring parameters, where the paper takes every so many layers; their number is ours.",
        "On CUDA sending is early and use is late, but nothing is overlapped.",
        _UNTUNED,
    ),
    published=("about two orders of magnitude less bandwidth between replicas at similar quality (abstract)",),
    recipes=(
        Recipe(
            "streaming-diloco",
            "four parts, overlap of 5 steps, mixing of a half",
            {
                "outer": "diloco",
                "outer_compress": "int4",
                "outer_gather": "int4",
                "outer_exchange": "reduce_scatter",
                "outer_fragments": 4,
                "outer_overlap": 5,
                "outer_mixing": 0.5,
            },
            _REPLICAS,
            outer_bits=0.283,
        ),
    ),
)


_MULOCO = System(
    name="muloco",
    about="DiLoCo with Muon inside each replica, whose result is sent in 2 bits with feedback",
    paper=Paper(
        "Thérien, Huang, Rish and Belilovsky",
        2025,
        "MuLoCo: Muon is a practical inner optimizer for DiLoCo",
        "2505.23725",
    ),
    does=(
        "Each replica trains by Muon (its matrices) and AdamW (the rest). How far it has moved is sent in 2 bits, with "
        "what earlier rounds left out; an outer SGD with Nesterov momentum moves what all begin again from."
    ),
    here=(
        "All of that: --optimizer muon, --outer diloco, 4 bins with feedback, everybody's messages to everybody, so "
        f"that nothing is rounded twice. {_EVERY}"
    ),
    differs=(
        "The bins are those of `binned` (a table of 4 values for 4,096 neighbouring elements), not the paper's.",
        "What earlier rounds left out is kept whole; `binned feedback(decay=0.9)` would let it fade.",
        "Matrices' updates are scaled as arXiv 2502.16982 does, so that AdamW's rate and weight decay are used "
        "(docs/library/muon.md). Where FSDP2 shards inside a replica, its ranks gather them as they are.",
        _UNTUNED,
    ),
    published=("2 bits with next to no loss of quality, and 8 times less sent than by DiLoCo (abstract, v1)",),
    measured=(
        "every 30 steps, 0.142 bits: perplexity +12.6 % [+8.7, +16.8] against AdamW uncompressed by the paper's outer "
        "rate and momentum, -19.2 % [-20.7, -17.7] by 1 and 0.3; with --outer_by_gradient embeddings "
        f"--outer_gradient_every 3, 0.509 bits: +2.2 % [-3.2, +7.9] and -25.2 % [-27.1, -23.2] ({_CHART})",
    ),
    recipes=(
        Recipe(
            "muloco",
            "2 bits between replicas",
            {
                "outer": "diloco",
                "outer_compress": "binned feedback",
                "outer_exchange": "all_gather",
                "optimizer_compress": "identity",
            },
            {**_REPLICAS, "optimizer": "muon"},
            outer_bits=0.135,
        ),
    ),
)


def _sparse(values: str) -> dict[str, str]:
    """SparseLoCo's settings, with its sent values carried as ``values`` says."""
    return {"outer": "local_sgd", "outer_compress": _SPARSE.format(values), "outer_exchange": "all_gather"}


_SPARSELOCO = System(
    name="sparseloco",
    about="local steps whose result is sent as the largest 64 of every 4,096, in 2 bits, with feedback",
    paper=Paper(
        "Sarfi, Thérien, Lidin and Belilovsky",
        2025,
        "Communication Efficient LLM Pre-training with SparseLoCo",
        "2508.15706",
    ),
    does=(
        "Each replica adds how far it has moved to what earlier rounds left out (times 0.95), sends the largest 64 of "
        "every 4,096 elements in 2 bits, and keeps the rest. Feedback stands for DiLoCo's outer momentum, so the outer "
        "step is plain: everybody's messages go to everybody, and their mean is applied."
    ),
    here=(
        "All of that: chunked top-k, positions of 12 bits, 4 bins, feedback with decay, an outer step without "
        f"momentum. {_EVERY}"
    ),
    differs=(
        "Chunks are 4,096 neighbouring elements of a row, not blocks of 64 x 64 of each matrix, and a table of values "
        "belongs to 4,096 sent values, not to a tensor.",
        "`sparseloco` has this project's bins (smaller error), `sparseloco-public-bins` those of the public code "
        "(tplr-ai): 6 standard deviations, one bin at the mean.",
        "The outer rate is 1; --outer_learning_rate changes it.",
    ),
    published=(
        "1 to 3 % of the elements in 2 bits, better than DiLoCo in full precision (abstract; 512M parameters)",
        "Covenant-72B (arXiv 2603.08163): 72B parameters on 1.1T tokens, H of 15 to 30",
    ),
    recipes=(
        Recipe("sparseloco", "this project's bins", _sparse("=binned"), _REPLICAS, outer_bits=0.015),
        Recipe(
            "sparseloco-public-bins",
            "the bins of the public code",
            _sparse("(binned range_sigmas=6 centre=bin)"),
            _REPLICAS,
            outer_bits=0.015,
        ),
    ),
)

LOCAL_STEPS = (_DILOCO, _STREAMING, _SPARSELOCO, _MULOCO)
