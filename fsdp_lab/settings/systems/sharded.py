"""Systems for sharded training: what they do with the parameters that are gathered, and the gradients."""

from __future__ import annotations

from fsdp_lab.settings.systems.kinds import Paper, Recipe, System

_ZERO_PP = System(
    name="zero++",
    about="parameters in int8 and gradients in int4, both with block scales",
    paper=Paper(
        "Wang et al.",
        2023,
        "ZeRO++: Extremely Efficient Collective Communication for Giant Model Training",
        "2306.10209",
    ),
    does=(
        "Three parts, which can be used alone. qwZ gathers parameters in int8 with block scales. qgZ replaces the "
        "gradients' reduce-scatter by all-to-alls of int4, first inside a node and then, after the sum is quantised "
        "again, between nodes. hpZ keeps a second copy of the parameters in each node, so that backward gathers "
        "nothing between nodes."
    ),
    here=(
        "qwZ, and qgZ with one all-to-all over all ranks: each gradient is quantised once. Blocks have 256 (int8) and "
        "128 (int4) elements, this project's defaults; we have not compared them with DeepSpeed's kernels."
    ),
    differs=(
        "hpZ is not here: there are no second shards inside a node. `zero++-hpz` keeps whole parameters on each rank "
        "after forward, so backward gathers nothing at all: what hpZ sends between nodes, for more memory.",
        "qgZ's second level is there with --dp_replicas alone, whose replicas are the nodes: the sum between them goes "
        "by the same int4, or by --replica_compress.",
    ),
    published=(
        "4x less volume than ZeRO-3 with 16 bits, by all three parts (abstract and DeepSpeed's tutorial)",
        "up to 2.16x the throughput on 384 GPUs (abstract)",
    ),
    recipes=(
        Recipe("zero++", "qwZ and qgZ", {"comm_compress": "int4 + int8"}, gradient_bits=4.25, parameter_bits=8.125),
        Recipe(
            "zero++-hpz",
            "the same, and parameters stay whole after forward",
            {"comm_compress": "int4 + int8, no reshard"},
            gradient_bits=4.25,
            parameter_bits=8.125,
        ),
        Recipe("zero++-qwz", "qwZ alone", {"param_compress": "int8"}, parameter_bits=8.125),
        Recipe("zero++-qgz", "qgZ alone", {"comm_compress": "int4"}, gradient_bits=4.25),
    ),
)

_SDP4BIT = System(
    name="sdp4bit",
    about="changes of parameters in 4 bits, gradients in 4 bits after a rotation",
    paper=Paper(
        "Jia et al.",
        2024,
        "SDP4Bit: Toward 4-bit Communication Quantization in Sharded Data Parallelism for LLM Training",
        "2410.15526",
    ),
    does=(
        "Gathers by how much parameters have changed since the last gather, in int4 with groups of 2,048; receivers "
        "add that to what they have, so that errors are fed back. Gradients go in two levels: int8, groups of 512, "
        "inside a node, then int4, groups of 128, between nodes, after a Hadamard transform of every 32."
    ),
    here=(
        "Changes of parameters. Gradients by either level over all ranks, `sdp4bit` as if every rank were a node, "
        "`sdp4bit-intra` as if all were in one; or by both, `sdp4bit-two-levels`, with HSDP: nodes are the replicas of "
        "--dp_replicas."
    ),
    differs=(
        "In two levels each node keeps the whole model, in shards (HSDP), where the paper shards over all ranks. So no "
        "parameters travel between nodes; but each node needs all sums of the gradients, which come back by the same 4 "
        "bits.",
        "Parameters that have not changed since the last gather are not sent again, so backward's gather is free.",
    ),
    published=(
        "4.016 bits a parameter and gather; gradients 4.25 between nodes, 8.06 inside (from the group sizes of "
        "hpdps-group/SDP4Bit)",
        "perplexity +0.20 % at GPT 125M, +0.25 % at 350M, +0.47 % at 1.3B after 80,000 iterations, without intervals "
        "(computed from the paper's figures)",
        "up to 4.08x the end-to-end throughput, on 128 GPUs (abstract)",
    ),
    recipes=(
        Recipe(
            "sdp4bit",
            "gradients as between nodes",
            {"comm_compress": "int4 hadamard + delta"},
            gradient_bits=4.25,
            parameter_bits=4.016,
        ),
        Recipe(
            "sdp4bit-intra",
            "gradients as inside a node",
            {"comm_compress": "int8 block_size=512 + delta"},
            gradient_bits=8.063,
            parameter_bits=4.016,
        ),
        Recipe(
            "sdp4bit-two-levels",
            "gradients in both levels: inside of a node, which is a replica of HSDP, and between nodes",
            {"comm_compress": "int8 block_size=512 + delta", "replica_compress": "int4 hadamard"},
            {"dp_replicas": 2},
            gradient_bits=8.063,
            parameter_bits=4.016,
            ranks=4,
        ),
    ),
)

_QSDP = System(
    name="qsdp",
    about="parameters as integers of 8 bits, gradients by an unbiased quantiser",
    paper=Paper(
        "Markov, Vladu, Guo and Alistarh",
        2023,
        "Quantized Distributed Training of Large Models with Convergence Guarantees",
        "2302.02390",
    ),
    does=(
        "Quantises parameters before they are gathered, on a grid that is shifted at random, so that the mean is "
        "right, and gradients by an unbiased quantiser. Shards stay exact at their owner."
    ),
    here="Gradients by QSGD, which is unbiased; parameters as integers with block scales, rounded to nearest.",
    differs=(
        "The grid is not shifted, so parameters are rounded with a bias. int8's random rounding of each element is "
        "refused for parameters: two gathers of one step would bring different weights.",
        "The abstract names no widths: both recipes have 8 bits for parameters, and 8 or 4 for gradients. Blocks have "
        "this project's sizes.",
    ),
    published=(
        "accuracy preserved for GPT models of up to 1.3 billion parameters, and up to 2.2x end to end (abstract)",
    ),
    recipes=(
        Recipe(
            "qsdp",
            "8 bits for both",
            {"comm_compress": "qsgd bits=8 + int8"},
            gradient_bits=8.063,
            parameter_bits=8.125,
        ),
        Recipe(
            "qsdp-4bit",
            "8 bits for parameters, 4 for gradients",
            {"comm_compress": "qsgd bits=4 + int8"},
            gradient_bits=4.063,
            parameter_bits=8.125,
        ),
    ),
)

_LOCO = System(
    name="loco",
    about="gradients in 4 bits with error feedback that is kept in 8 bits and now and then dropped",
    paper=Paper(
        "Xie, Lin, Toh and Zhou",
        2024,
        "LoCo: Low-Bit Communication Adaptor for Large-scale Model Training",
        "2407.04480",
    ),
    does=(
        "Adds a moving average of past errors to the gradient before it is quantised to 4 bits; the average is kept in "
        "8 bits, and reset every so many steps. An all-to-all and a sum in full precision follow."
    ),
    here="Gradients in int4, feedback whose residual takes one byte an element and is dropped every 128 collectives.",
    differs=(
        "The residual is all of what the last step left out, not a moving average of errors: error feedback's law "
        "(decoded + residual = input + old residual) holds here for every method.",
        "128 is ours, as we found no number that the paper asks for; `loco-no-reset` never drops it. For another "
        "number type the label itself.",
    ),
    published=(
        "Adam 14 to 40 % faster, without loss of quality, for LLaMA and mixtures of experts, under Megatron-LM and "
        "FSDP (abstract)",
    ),
    recipes=(
        Recipe(
            "loco",
            "the residual is dropped every 128 collectives",
            {"comm_compress": "int4 feedback(dtype=int8 reset_every=128)"},
            gradient_bits=4.25,
        ),
        Recipe(
            "loco-no-reset",
            "the residual is never dropped",
            {"comm_compress": "int4 feedback(dtype=int8)"},
            gradient_bits=4.25,
        ),
    ),
)

_PULSE = System(
    name="lossless",
    about="changes of bf16 parameters, entropy coded: every bit arrives",
    paper=Paper(
        "Miahi and Belilovsky",
        2026,
        "Understanding and Exploiting Weight Update Sparsity for Communication-Efficient Distributed RL",
        "2602.03839",
    ),
    does=(
        "PULSESync sends from trainers to inference workers only those weights whose bf16 value has changed, as "
        "positions and values, compressed without loss. At the rates of reinforcement learning some 99 % do not change "
        "in a step."
    ),
    here=(
        "The same idea in the parameters' all-gather: the distance of each parameter from its last value, in units of "
        "the last place, entropy coded. Give --mixed_precision bf16: changes of float32 take 15 bits and more."
    ),
    differs=(
        "Receivers are the ranks that train, not inference workers.",
        "Distances are sent for all elements, not positions and values of some: at the rates of pre-training more "
        "weights move than at those of RL.",
        "The paper has no gradients to send. lossless-both sends them as bf16 numbers, entropy coded, which is exact "
        "where arithmetic is bf16 and nothing is accumulated over several backward passes.",
    ),
    published=(
        "more than 100x less for weight synchronisation in RL (14 GB to about 108 MB), bit-identical (abstract)",
    ),
    measured=(
        "gpt2-mini, 400 steps at a rate of up to 2e-3, bf16 arithmetic, two ranks: both ways 14.6 bits a parameter and "
        "step where bf16 sends 42.9, the validation loss of uncompressed training to the last digit "
        "(docs/findings/lossless.md)",
        "3.7 bits at a rate of 6e-4, 1.7 at 1e-4, 0.4 at 1e-5, of modelled bf16 weights and updates, not of a training "
        "(comm_compress/methods/delta/lossless.py)",
    ),
    recipes=(
        Recipe("lossless", "parameters alone", {"param_compress": "delta mode=lossless"}),
        Recipe(
            "lossless-both",
            "gradients, too, as bf16 numbers, entropy coded",
            {"comm_compress": "bf16 entropy=rans", "param_compress": "delta mode=lossless"},
        ),
    ),
)

_FLOAT8_GATHER = System(
    name="float8-gather",
    about="parameters gathered as 8-bit floats (TorchAO's fp8 all-gather in torchtitan)",
    paper=None,
    does=(
        "torchao's enable_fsdp_float8_all_gather casts the weights of linear layers to e4m3 before FSDP2 gathers them, "
        "with one scale a tensor from one all-reduce of all largest magnitudes; matrix products then run in float8."
    ),
    here="The gather in e4m3. Gradients are reduced in float32, or as --comm_compress says.",
    differs=(
        "All parameters go in 8 bits, also embeddings and norms, and a scale belongs to 256 elements, which needs no "
        "all-reduce and costs an eighth of a bit.",
        "Matrix products run in the model's own arithmetic: what the gather saves is here, what float8 computes is "
        "not.",
    ),
    published=("about a fifth of float8's gain comes from the gather (pytorch/torchtitan#653)",),
    recipes=(Recipe("float8-gather", "e4m3, a scale a block", {"param_compress": "fp8"}, parameter_bits=8.125),),
)

SHARDED = (_ZERO_PP, _SDP4BIT, _QSDP, _LOCO, _FLOAT8_GATHER, _PULSE)
