"""Systems that cannot be said in this project's settings, and what is missing."""

from __future__ import annotations

from fsdp_lab.settings.systems.kinds import Missing

MISSING = (
    Missing(
        "dynamiq",
        "arXiv 2602.08923",
        "it decodes, adds and encodes again at every hop of an all-reduce; here a message is encoded once",
    ),
    Missing(
        "fcdp",
        "arXiv 2602.06499",
        "it keeps gathered weights in the hosts' memory between forward and backward; only its saving for adapters is "
        "here, by --lora_rank and --fsdp_keep_frozen",
    ),
    Missing(
        "scape",
        "arXiv 2607.01678",
        "it chooses what to send by the optimizer's first moment; methods here see gradients alone",
    ),
    Missing(
        "tagc",
        "arXiv 2504.05638",
        "it sums count-sketches of the kept elements with a shared index, which brings every one back; `sketch` "
        "estimates the largest and asks for them again, as Sketched-SGD does",
    ),
    Missing(
        "zipccl",
        "arXiv 2604.27844",
        "it codes the floats of every collective without loss, on a GPU; here `entropy` codes the bytes of a method",
    ),
)
"""By name, in the order of the alphabet."""
