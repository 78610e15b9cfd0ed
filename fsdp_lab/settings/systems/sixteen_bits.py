"""What is done without any compression of ours: the arms that ratios are quoted against."""

from __future__ import annotations

from fsdp_lab.settings.systems.kinds import Paper, Recipe, System

SIXTEEN_BITS = (
    System(
        name="torchtitan",
        about="gathers parameters in bf16, and reduces gradients in float32",
        paper=Paper(
            "Liang et al.",
            2024,
            "TorchTitan: One-stop PyTorch native solution for production ready LLM pre-training",
            "2410.06511",
        ),
        does=(
            "torchtitan's FSDP2 policy by default: mixed_precision_param is bfloat16 and mixed_precision_reduce is "
            "float32. Optimizer and shards stay in float32."
        ),
        here=(
            "The same widths. `torchtitan` gathers in 16 bits whatever the arithmetic is; with --mixed_precision bf16 "
            "FSDP2 does so by itself, and --method none sends the same bytes. `bf16` also sends gradients in 16 bits, "
            "and sums them in float32 at their owner; this project's ratios against 16 bits are quoted against it."
        ),
        differs=(
            "FSDP2's own --comm_dtype bf16 also sends gradients in 16 bits, but adds them up in bf16 on their way; "
            "`bf16` adds after the exchange, as a sum in bf16 loses bits with every rank.",
        ),
        recipes=(
            Recipe(
                "torchtitan",
                "parameters in bf16, gradients in float32: torchtitan's default",
                {"comm_compress": "none + bf16", "comm_dtype": "fp32"},
                gradient_bits=32.0,
                parameter_bits=16.0,
            ),
            Recipe(
                "bf16",
                "both directions in bf16, gradients summed in float32",
                {"comm_compress": "bf16 + bf16"},
                gradient_bits=16.0,
                parameter_bits=16.0,
            ),
        ),
    ),
)
