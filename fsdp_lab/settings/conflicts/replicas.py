"""The method of the gradients' sum between replicas, where there is no such sum."""

from __future__ import annotations

from fsdp_lab.settings.groups import CommConfig, OptimConfig, ParallelConfig


def of_replicas(comm: CommConfig, optim: OptimConfig, parallel: ParallelConfig) -> list[str]:
    """A complaint for each reason why a method for the sum between replicas has nothing to carry.

    How many data-parallel ranks there are is known to ranks alone, where ``dp`` does not say it: what is left is
    refused by `ParallelModel.attach`."""
    if comm.replica_compress == "none":
        return []
    wrong = {
        "replica_compress: there is one replica; give dp_replicas 2 or more, and more ranks than that": (
            parallel.dp_replicas == 1
        ),
        "replica_compress: replicas of one rank each have one sum, by comm_compress; leave it out, or give more dp": (
            parallel.dp_replicas == parallel.dp > 1
        ),
        "replica_compress: with tp and pp all sums go by comm_compress; leave it out": parallel.is_divided,
        "replica_compress: gradients are summed inside a replica first; give comm_compress, too, or identity to have "
        "that exact": comm.comm_compress == "none",
        "replica_compress: replicas that train by themselves sum no gradients; leave out outer, or this": (
            comm.outer != "none"
        ),
        f"replica_compress: replicas of {optim.optimizer} sum no gradients; leave it out, or give adamw": (
            optim.is_between_replicas
        ),
    }
    return [complaint for complaint, is_so in wrong.items() if is_so]
