"""Fields about what surrounds a training: its checkpoints, cost, network and machine."""

from fsdp_lab.results.schema.field import Field

CHECKPOINTS = (
    Field("resumed_at_steps", "list of int", "steps", "after which the run was resumed from a checkpoint", "no"),
    Field("saves", "int", "", "checkpoints saved, whole training", "no"),
    Field("failed_saves", "int", "", "checkpoints that could not be saved, whole training", "no"),
    Field("saved_step", "int", "", "step of the newest checkpoint", "no"),
    Field("save_exposed_s", "float", "s", "that training stood still for saves; not in train_time_s", "no"),
)
COST = (
    Field("wall_time_s", "float", "s", "from the start of the program to this row"),
    Field("time_to_first_step_s", "float", "s", "from the program's start to the end of its first step", "no"),
    Field("train_time_s", "float", "s", "in optimiser steps, all of them; what sampling took is left out"),
    Field("feedback_bytes", "int", "bytes", "memory of residuals and other compressor state per rank", nullable=True),
    Field(
        "outer_bytes",
        "int",
        "bytes",
        "memory per rank of the weights that replicas last agreed on, of the outer step's momentum and of gradients "
        "that are added up; null without outer",
        "no",
    ),
    Field("peak_rss_gb", "float", "GB (1e9)", "largest resident memory of a rank (virtual ranks: of all together)"),
    Field("mem_peak_alloc_gb", "float", "GB (1e9)", "largest CUDA memory of a rank in tensors; CPU: peak_rss_gb"),
    Field(
        "mem_peak_reserved_gb",
        "float",
        "GB (1e9)",
        "largest CUDA memory that a rank's allocator held; CPU: peak_rss_gb",
        since=2,
    ),
)
LINK = (
    Field("link_rate_asked", "float", "bit/s", "what a node was allowed to send; null without a limit", "no"),
    Field("link_rate_measured", "float", "bit/s", "what a TCP stream got between two nodes before the run", "no"),
    Field("link_delay_ms", "float", "ms", "latency added one way", "no"),
    Field(
        "interface_bytes_total",
        "int",
        "bytes",
        "sent by the network interface over interface_steps, headers included, mean over the ranks",
        "no",
    ),
    Field("interface_steps", "int", "steps", "training steps that interface_bytes_total counts, nothing else", "no"),
    Field(
        "bytes_trusted",
        "bool",
        "",
        "is the interface's payload within 1 % of what we say was sent? null where nobody can tell "
        "(docs/comparing/links.md)",
        "no",
    ),
)
MACHINE = (
    Field("git_commit", "str", "", "commit of the source checkout; null when installed", "no"),
    Field("git_dirty", "bool", "", "whether the checkout had uncommitted changes", "no"),
    Field("versions", "object", "", "python, torch, ... by name", "no"),
    Field("hardware", "object", "", "cpu, cores, ram_gb, gpus, host (a hash, not the name)", "no"),
    Field("torchrun", "object", "", "what the launcher said: run id, restarts, node layout; null without it", "no"),
    Field(
        "injected_fault",
        "str",
        "",
        "what was broken on purpose (docs/trainer/faults.md): no measurement; else null",
        "no",
    ),
    Field("nonfinite_fields", "list of str", "", "fields that were NaN or infinite and are null here", "no"),
)
