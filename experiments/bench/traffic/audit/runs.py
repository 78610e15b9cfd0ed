"""What is audited, by name, and on how many ranks; `jobs` makes it. The flags need these names, and no torch."""

from __future__ import annotations

MODES = (
    "FSDP2",
    "FSDP2, int8 gradients",
    "FSDP2, topk and int8",
    "DDP",
    "tensor parallel",
    "pipeline",
    "FSDP2 and Muon",
)
HYBRID = ("HSDP",)
COLLECTIVES = (
    "all_gather_single",
    "all_gather",
    "reduce_scatter_single",
    "reduce_scatter",
    "all_reduce",
    "all_to_all_single",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "batch_isend_irecv",
)
RUNS = {
    "modes": (2, MODES),
    "hybrid": (4, HYBRID),
    "collectives": (3, COLLECTIVES),
    "more collectives": (4, COLLECTIVES),
}
"""By name: ranks, and the jobs that these run one after another."""
